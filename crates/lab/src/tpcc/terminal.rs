//! A terminal: the five transactions (clauses 2.4 to 2.8), drawn in the specification's mix.

use super::random::{customer, item, money, some_name};
use super::{DISTRICTS, Scale};
use crate::db::Address;
use crate::driver::{Failure, Worker};
use crate::error::Error;
use mysql::prelude::{FromRow, Queryable};
use mysql::{Conn, Params, Row, Value, from_row_opt};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// The transactions, with the percentage of each. Clause 5.2.3 gives the least percentage of each but the
/// first, which gets the rest.
const MIX: [(&str, u32); 5] =
    [("new order", 45), ("payment", 43), ("order status", 4), ("delivery", 4), ("stock level", 4)];
/// The names of the transactions, in the order of the indices that `request` returns.
pub const KINDS: [&str; 5] = [MIX[0].0, MIX[1].0, MIX[2].0, MIX[3].0, MIX[4].0];

/// A value that is fetched, as the specification demands, and not used.
type Unread = Value;

/// The session of a terminal, which belongs to a warehouse.
#[derive(Debug)]
pub struct Terminal {
    conn: Conn,
    scale: Scale,
    warehouse: u32,
}

type Done = Result<(), mysql::Error>;

impl Terminal {
    /// Opens the session of a terminal of this warehouse.
    ///
    /// # Errors
    /// An error if the server refuses the session.
    pub fn new(address: &Address, scale: Scale, warehouse: u32) -> Result<Self, Error> {
        Ok(Self { conn: address.enter()?.conn, scale, warehouse })
    }

    fn all<T: FromRow>(&mut self, sql: &str, params: impl Into<Params>) -> Result<Vec<T>, mysql::Error> {
        // The connection caches statements, so each is prepared once.
        let statement = self.conn.prep(sql)?;
        let rows: Vec<Row> = self.conn.exec(&statement, params)?;
        rows.into_iter().map(|row| Ok(from_row_opt(row)?)).collect()
    }

    fn row<T: FromRow>(&mut self, sql: &str, params: impl Into<Params>) -> Result<Option<T>, mysql::Error> {
        Ok(self.all(sql, params)?.into_iter().next())
    }

    fn put(&mut self, sql: &str, params: impl Into<Params>) -> Done {
        let statement = self.conn.prep(sql)?;
        self.conn.exec_drop(&statement, params)
    }

    fn district(rng: &mut Pcg64Mcg) -> u32 {
        rng.random_range(1..=DISTRICTS)
    }

    /// Draws a warehouse other than the terminal's own, if there is more than one.
    fn remote(&self, rng: &mut Pcg64Mcg) -> u32 {
        if self.scale.warehouses == 1 {
            return self.warehouse;
        }
        let other = rng.random_range(1..self.scale.warehouses);
        if other >= self.warehouse { other + 1 } else { other }
    }

    fn new_order(&mut self, rng: &mut Pcg64Mcg) -> Done {
        let (w, d, c) = (self.warehouse, Self::district(rng), customer(rng, &self.scale));
        let count = rng.random_range(5..=15_u32);
        // One transaction in a hundred has an item that does not exist, and is rolled back.
        let fails = rng.random_range(0..100) == 0;
        let mut lines: Vec<(u32, u32, u32)> = (0..count)
            .map(|_| {
                let supply = if rng.random_range(0..100) == 0 { self.remote(rng) } else { w };
                (item(rng, &self.scale), supply, rng.random_range(1..=10))
            })
            .collect();
        // All terminals lock stock in the same order, so that they do not deadlock on it. The specification
        // leaves the order free.
        lines.sort_unstable();
        let local = u32::from(lines.iter().all(|l| l.1 == w));
        self.conn.query_drop("START TRANSACTION")?;
        let _: Option<(Unread, Unread, Unread, Unread)> = self.row(
            "SELECT c_discount, c_last, c_credit, w_tax FROM customer JOIN warehouse ON w_id = c_w_id WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            (w, d, c),
        )?;
        let next: Option<(u32, Unread)> = self.row(
            "SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = ? AND d_id = ? FOR UPDATE",
            (w, d),
        )?;
        let order = next.map_or(0, |n| n.0);
        self.put("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = ? AND d_id = ?", (w, d))?;
        self.put(
            "INSERT INTO orders VALUES (?, ?, ?, ?, NOW(), NULL, ?, ?)",
            (w, d, order, c, count, local),
        )?;
        self.put("INSERT INTO new_order VALUES (?, ?, ?)", (w, d, order))?;
        for (number, (item, supply, quantity)) in (1_u32..).zip(lines) {
            let item = if fails && number == count { 0 } else { item };
            let found: Option<(f64, Unread, Unread)> =
                self.row("SELECT i_price, i_name, i_data FROM item WHERE i_id = ?", (item,))?;
            let Some((price, _, _)) = found else {
                return self.conn.query_drop("ROLLBACK");
            };
            self.order_line((w, d, order, number), (item, supply, quantity), price)?;
        }
        self.conn.query_drop("COMMIT")
    }

    fn order_line(
        &mut self,
        (w, d, order, number): (u32, u32, u32, u32),
        (item, supply, quantity): (u32, u32, u32),
        price: f64,
    ) -> Done {
        let stock: Option<(u32, Unread)> = self.row(
            &format!(
                "SELECT s_quantity, s_dist_{d:02} FROM stock WHERE s_w_id = ? AND s_i_id = ? FOR UPDATE"
            ),
            (supply, item),
        )?;
        let (left, text) = stock.unwrap_or((0, Value::NULL));
        let left = if left >= quantity + 10 { left - quantity } else { left + 91 - quantity };
        self.put(
            "UPDATE stock SET s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + ? WHERE s_w_id = ? AND s_i_id = ?",
            (left, quantity, u32::from(supply != w), supply, item),
        )?;
        #[expect(clippy::cast_possible_truncation, reason = "a price is at most 100.00")]
        let amount = money((price * 100.0).round() as i64 * i64::from(quantity));
        self.put(
            "INSERT INTO order_line VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)",
            (w, d, order, number, item, supply, quantity, amount, text),
        )
    }

    /// Draws a customer: in six of ten cases by name, else by number. Of all customers with the name, it is
    /// the middle customer (clause 2.5.2.2).
    fn some_customer(&mut self, rng: &mut Pcg64Mcg, w: u32, d: u32) -> Result<u32, mysql::Error> {
        if rng.random_range(0..10) >= 6 {
            return Ok(customer(rng, &self.scale));
        }
        let name = some_name(rng, &self.scale);
        let all: Vec<u32> = self.all(
            "SELECT c_id FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_last = ? ORDER BY c_first",
            (w, d, name),
        )?;
        Ok(all.get(all.len().div_ceil(2).saturating_sub(1)).copied().unwrap_or(1))
    }

    fn payment(&mut self, rng: &mut Pcg64Mcg) -> Done {
        let (w, d) = (self.warehouse, Self::district(rng));
        let (cw, cd) =
            if rng.random_range(0..100) < 85 { (w, d) } else { (self.remote(rng), Self::district(rng)) };
        let amount = money(rng.random_range(100..=500_000));
        self.conn.query_drop("START TRANSACTION")?;
        self.put("UPDATE warehouse SET w_ytd = w_ytd + ? WHERE w_id = ?", (&amount, w))?;
        let warehouse: Option<(String, Unread, Unread)> =
            self.row("SELECT w_name, w_street_1, w_city FROM warehouse WHERE w_id = ?", (w,))?;
        self.put("UPDATE district SET d_ytd = d_ytd + ? WHERE d_w_id = ? AND d_id = ?", (&amount, w, d))?;
        let district: Option<(String, Unread, Unread)> = self
            .row("SELECT d_name, d_street_1, d_city FROM district WHERE d_w_id = ? AND d_id = ?", (w, d))?;
        let c = self.some_customer(rng, cw, cd)?;
        let found: Option<(String, Unread, Unread, Unread)> = self.row(
            "SELECT c_credit, c_first, c_balance, c_discount FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ? FOR UPDATE",
            (cw, cd, c),
        )?;
        if found.is_some_and(|f| f.0 == "BC") {
            self.put(
                "UPDATE customer SET c_balance = c_balance - ?, c_ytd_payment = c_ytd_payment + ?, c_payment_cnt = c_payment_cnt + 1, \
                 c_data = LEFT(CONCAT(?, '|', c_data), 500) WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
                (&amount, &amount, format!("{c} {cd} {cw} {d} {w} {amount}"), cw, cd, c),
            )?;
        } else {
            self.put(
                "UPDATE customer SET c_balance = c_balance - ?, c_ytd_payment = c_ytd_payment + ?, c_payment_cnt = c_payment_cnt + 1 \
                 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
                (&amount, &amount, cw, cd, c),
            )?;
        }
        let text = format!(
            "{}    {}",
            warehouse.map(|w| w.0).unwrap_or_default(),
            district.map(|d| d.0).unwrap_or_default()
        );
        self.put(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, NOW(), ?, ?)",
            (c, cd, cw, d, w, &amount, text),
        )?;
        self.conn.query_drop("COMMIT")
    }

    fn order_status(&mut self, rng: &mut Pcg64Mcg) -> Done {
        let (w, d) = (self.warehouse, Self::district(rng));
        self.conn.query_drop("START TRANSACTION")?;
        let c = self.some_customer(rng, w, d)?;
        let _: Option<(Unread, Unread, Unread)> = self.row(
            "SELECT c_balance, c_first, c_last FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            (w, d, c),
        )?;
        let last: Option<(u32, Unread)> = self.row(
            "SELECT o_id, o_carrier_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_c_id = ? ORDER BY o_id DESC LIMIT 1",
            (w, d, c),
        )?;
        if let Some((order, _)) = last {
            let _: Vec<(u32, u32, Unread, Unread)> = self.all(
                "SELECT ol_i_id, ol_supply_w_id, ol_amount, ol_delivery_d FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
                (w, d, order),
            )?;
        }
        self.conn.query_drop("COMMIT")
    }

    fn delivery(&mut self, rng: &mut Pcg64Mcg) -> Done {
        let (w, carrier) = (self.warehouse, rng.random_range(1..=10_u32));
        self.conn.query_drop("START TRANSACTION")?;
        for d in 1..=DISTRICTS {
            let oldest: Option<u32> = self.row(
                "SELECT no_o_id FROM new_order WHERE no_w_id = ? AND no_d_id = ? ORDER BY no_o_id LIMIT 1 FOR UPDATE",
                (w, d),
            )?;
            // A district with nothing to deliver is left out.
            let Some(order) = oldest else { continue };
            self.put(
                "DELETE FROM new_order WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?",
                (w, d, order),
            )?;
            // The order may be newer than the transaction's snapshot, which only a locking read goes beyond.
            let c: Option<u32> = self.row(
                "SELECT o_c_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_id = ? FOR UPDATE",
                (w, d, order),
            )?;
            self.put(
                "UPDATE orders SET o_carrier_id = ? WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?",
                (carrier, w, d, order),
            )?;
            self.put(
                "UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
                (w, d, order),
            )?;
            let sum: Option<String> = self.row(
                "SELECT CAST(SUM(ol_amount) AS CHAR) FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
                (w, d, order),
            )?;
            self.put(
                "UPDATE customer SET c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
                (sum.unwrap_or_default(), w, d, c.unwrap_or(0)),
            )?;
        }
        self.conn.query_drop("COMMIT")
    }

    fn stock_level(&mut self, rng: &mut Pcg64Mcg) -> Done {
        let (w, d, least) = (self.warehouse, Self::district(rng), rng.random_range(10..=20_u32));
        self.conn.query_drop("START TRANSACTION")?;
        let next: Option<u32> =
            self.row("SELECT d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?", (w, d))?;
        let next = next.unwrap_or(0);
        let _: Option<u64> = self.row(
            "SELECT COUNT(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id \
             WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id < ? AND ol_o_id >= ? AND s_quantity < ?",
            (w, d, next, next.saturating_sub(20), least),
        )?;
        self.conn.query_drop("COMMIT")
    }
}

impl Worker for Terminal {
    fn request(&mut self, rng: &mut Pcg64Mcg) -> Result<usize, Failure> {
        let mut drawn = rng.random_range(0..100);
        let mut kind = 0;
        for (n, (_, share)) in MIX.iter().enumerate() {
            if drawn < *share {
                kind = n;
                break;
            }
            drawn -= share;
        }
        let done = match kind {
            0 => self.new_order(rng),
            1 => self.payment(rng),
            2 => self.order_status(rng),
            3 => self.delivery(rng),
            _ => self.stock_level(rng),
        };
        if done.is_err() {
            // A lock wait timeout rolls back its statement alone, so the transaction is rolled back here. If
            // the session is gone, the first error reports it.
            let _ = self.conn.query_drop("ROLLBACK");
        }
        done?;
        Ok(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_that_of_the_specification() {
        assert_eq!(MIX.iter().map(|m| m.1).sum::<u32>(), 100);
        assert!(MIX[1].1 >= 43 && MIX[2..].iter().all(|m| m.1 >= 4));
    }
}
