//! The nine tables and their initial content (clauses 1.3 and 4.3.3).

use super::random::{NAME_LOAD, data, digits, letters, money, name, non_uniform, zip};
use super::{DISTRICTS, Scale};
use crate::db::{Address, Db};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::stats::generator;
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

/// Rows in one INSERT.
const BATCH: usize = 500;

const SCHEMA: [&str; 9] = [
    "CREATE TABLE warehouse (w_id INT PRIMARY KEY, w_name VARCHAR(10), w_street_1 VARCHAR(20), w_street_2 VARCHAR(20), w_city VARCHAR(20), \
     w_state CHAR(2), w_zip CHAR(9), w_tax DECIMAL(4,4), w_ytd DECIMAL(12,2)) ENGINE=InnoDB",
    "CREATE TABLE district (d_w_id INT, d_id INT, d_name VARCHAR(10), d_street_1 VARCHAR(20), d_street_2 VARCHAR(20), d_city VARCHAR(20), \
     d_state CHAR(2), d_zip CHAR(9), d_tax DECIMAL(4,4), d_ytd DECIMAL(12,2), d_next_o_id INT, PRIMARY KEY (d_w_id, d_id)) ENGINE=InnoDB",
    "CREATE TABLE customer (c_w_id INT, c_d_id INT, c_id INT, c_first VARCHAR(16), c_middle CHAR(2), c_last VARCHAR(16), c_street_1 VARCHAR(20), \
     c_street_2 VARCHAR(20), c_city VARCHAR(20), c_state CHAR(2), c_zip CHAR(9), c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2), \
     c_credit_lim DECIMAL(12,2), c_discount DECIMAL(4,4), c_balance DECIMAL(12,2), c_ytd_payment DECIMAL(12,2), c_payment_cnt INT, \
     c_delivery_cnt INT, c_data VARCHAR(500), PRIMARY KEY (c_w_id, c_d_id, c_id), KEY by_name (c_w_id, c_d_id, c_last, c_first)) ENGINE=InnoDB",
    "CREATE TABLE history (h_c_id INT, h_c_d_id INT, h_c_w_id INT, h_d_id INT, h_w_id INT, h_date DATETIME, h_amount DECIMAL(6,2), \
     h_data VARCHAR(24)) ENGINE=InnoDB",
    "CREATE TABLE new_order (no_w_id INT, no_d_id INT, no_o_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id)) ENGINE=InnoDB",
    "CREATE TABLE orders (o_w_id INT, o_d_id INT, o_id INT, o_c_id INT, o_entry_d DATETIME, o_carrier_id INT, o_ol_cnt INT, o_all_local INT, \
     PRIMARY KEY (o_w_id, o_d_id, o_id), KEY by_customer (o_w_id, o_d_id, o_c_id, o_id)) ENGINE=InnoDB",
    "CREATE TABLE order_line (ol_w_id INT, ol_d_id INT, ol_o_id INT, ol_number INT, ol_i_id INT, ol_supply_w_id INT, ol_delivery_d DATETIME, \
     ol_quantity INT, ol_amount DECIMAL(6,2), ol_dist_info CHAR(24), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)) ENGINE=InnoDB",
    "CREATE TABLE item (i_id INT PRIMARY KEY, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2), i_data VARCHAR(50)) ENGINE=InnoDB",
    "CREATE TABLE stock (s_w_id INT, s_i_id INT, s_quantity INT, s_dist_01 CHAR(24), s_dist_02 CHAR(24), s_dist_03 CHAR(24), s_dist_04 CHAR(24), \
     s_dist_05 CHAR(24), s_dist_06 CHAR(24), s_dist_07 CHAR(24), s_dist_08 CHAR(24), s_dist_09 CHAR(24), s_dist_10 CHAR(24), s_ytd INT, \
     s_order_cnt INT, s_remote_cnt INT, s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id)) ENGINE=InnoDB",
];

/// Creates the tables, empty.
///
/// # Errors
/// The server's error.
pub fn create(db: &mut Db) -> Result<(), Error> {
    SCHEMA.iter().try_for_each(|sql| db.run(sql))
}

/// Fills the tables, several warehouses at a time.
///
/// # Errors
/// The server's error; [`Error::Interrupted`] on an interrupt.
pub fn fill(address: &Address, scale: Scale, seed: u64, interrupt: &Interrupt) -> Result<(), Error> {
    items(&mut Rows::new(address, interrupt)?, scale, &mut generator(seed, "items"))?;
    let lanes = std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 8);
    let mut results = Vec::new();
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..lanes)
            .map(|lane| {
                scope.spawn(move || {
                    let mut rows = Rows::new(address, interrupt)?;
                    for w in (1..=scale.warehouses).skip(lane).step_by(lanes) {
                        warehouse(&mut rows, scale, w, &mut generator(seed, &format!("warehouse {w}")))?;
                    }
                    Ok(())
                })
            })
            .collect();
        for filler in fillers {
            results.push(
                filler
                    .join()
                    .unwrap_or_else(|_| Err(Error::Bug("a thread that fills tables panicked".into()))),
            );
        }
    });
    results.into_iter().collect()
}

/// Rows that wait for their INSERT, into one table at a time.
struct Rows<'a> {
    db: Db,
    interrupt: &'a Interrupt,
    table: &'static str,
    waiting: Vec<String>,
}

impl<'a> Rows<'a> {
    fn new(address: &Address, interrupt: &'a Interrupt) -> Result<Self, Error> {
        Ok(Self { db: address.enter()?, interrupt, table: "", waiting: Vec::new() })
    }

    /// Adds a row, given as SQL. All text here is made of letters and digits, so nothing needs escaping.
    fn add(&mut self, table: &'static str, values: &str) -> Result<(), Error> {
        if self.table != table || self.waiting.len() >= BATCH {
            self.flush()?;
        }
        self.table = table;
        self.waiting.push(format!("({values})"));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.interrupt.check()?;
        if !self.waiting.is_empty() {
            self.db.run(&format!("INSERT INTO {} VALUES {}", self.table, self.waiting.join(",")))?;
            self.waiting.clear();
        }
        Ok(())
    }
}

fn address_of(rng: &mut Pcg64Mcg) -> String {
    let (a, b, c, d) = (letters(rng, 10, 20), letters(rng, 10, 20), letters(rng, 10, 20), letters(rng, 2, 2));
    format!("'{a}','{b}','{c}','{d}','{}'", zip(rng))
}

fn items(rows: &mut Rows<'_>, scale: Scale, rng: &mut Pcg64Mcg) -> Result<(), Error> {
    for i in 1..=scale.items {
        let image = rng.random_range(1..=10_000);
        let (name, price) = (letters(rng, 14, 24), money(rng.random_range(100..=10_000)));
        rows.add("item", &format!("{i},{image},'{name}',{price},'{}'", data(rng)))?;
    }
    rows.flush()
}

fn warehouse(rows: &mut Rows<'_>, scale: Scale, w: u32, rng: &mut Pcg64Mcg) -> Result<(), Error> {
    let tax = |rng: &mut Pcg64Mcg| format!("0.{:04}", rng.random_range(0..=2000));
    // 10.00 for each customer, as the customer's row of `history` has it.
    let ytd = i64::from(scale.customers) * 1_000;
    let (name, at, rate) = (letters(rng, 6, 10), address_of(rng), tax(rng));
    rows.add("warehouse", &format!("{w},'{name}',{at},{rate},{}", money(ytd * i64::from(DISTRICTS))))?;
    for i in 1..=scale.items {
        let quantity = rng.random_range(10..=100);
        let mut line = format!("{w},{i},{quantity}");
        for _ in 0..DISTRICTS {
            line = format!("{line},'{}'", letters(rng, 24, 24));
        }
        rows.add("stock", &format!("{line},0,0,0,'{}'", data(rng)))?;
    }
    for d in 1..=DISTRICTS {
        let (name, at, rate) = (letters(rng, 6, 10), address_of(rng), tax(rng));
        rows.add(
            "district",
            &format!("{w},{d},'{name}',{at},{rate},{},{}", money(ytd), scale.customers + 1),
        )?;
    }
    for d in 1..=DISTRICTS {
        customers(rows, scale, w, d, rng)?;
    }
    for d in 1..=DISTRICTS {
        for c in 1..=scale.customers {
            let text = letters(rng, 12, 24);
            rows.add("history", &format!("{c},{d},{w},{d},{w},NOW(),10.00,'{text}'"))?;
        }
    }
    for d in 1..=DISTRICTS {
        orders(rows, scale, w, d, rng)?;
    }
    rows.flush()
}

fn customers(rows: &mut Rows<'_>, scale: Scale, w: u32, d: u32, rng: &mut Pcg64Mcg) -> Result<(), Error> {
    for c in 1..=scale.customers {
        let number = if c <= 1000 { c - 1 } else { non_uniform(rng, 255, NAME_LOAD, 0, 999) };
        let (first, last, at) = (letters(rng, 8, 16), name(number), address_of(rng));
        let (phone, credit) = (digits(rng, 16), if rng.random_range(0..10) == 0 { "BC" } else { "GC" });
        let (discount, text) = (rng.random_range(0..=5000), letters(rng, 300, 500));
        rows.add(
            "customer",
            &format!(
                "{w},{d},{c},'{first}','OE','{last}',{at},'{phone}',NOW(),'{credit}',50000.00,0.{discount:04},-10.00,10.00,1,0,'{text}'"
            ),
        )?;
    }
    Ok(())
}

fn orders(rows: &mut Rows<'_>, scale: Scale, w: u32, d: u32, rng: &mut Pcg64Mcg) -> Result<(), Error> {
    let mut customers: Vec<u32> = (1..=scale.customers).collect();
    customers.shuffle(rng);
    let first_new = scale.first_new_order();
    let mut lines = Vec::new();
    for (o, c) in (1_u32..).zip(customers) {
        let count = rng.random_range(5..=15);
        let carrier = if o < first_new { rng.random_range(1..=10).to_string() } else { "NULL".to_owned() };
        rows.add("orders", &format!("{w},{d},{o},{c},NOW(),{carrier},{count},1"))?;
        for n in 1..=count {
            let item = rng.random_range(1..=scale.items);
            let (delivered, amount) =
                if o < first_new { ("NOW()", 0) } else { ("NULL", rng.random_range(1..=999_999)) };
            let text = letters(rng, 24, 24);
            lines.push(format!("{w},{d},{o},{n},{item},{w},{delivered},5,{},'{text}'", money(amount)));
        }
    }
    for line in lines {
        rows.add("order_line", &line)?;
    }
    for o in first_new..=scale.customers {
        rows.add("new_order", &format!("{w},{d},{o}"))?;
    }
    Ok(())
}
