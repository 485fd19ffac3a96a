//! The transactions of pgbench: the same statements and the same random numbers as its built-in scripts.

use super::session::Session;
use crate::conditions::Condition;
use crate::driver::{Failure, Worker};
use crate::error::Error;
use clap::ValueEnum;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Accounts for each unit of scale.
const ACCOUNTS: u32 = 100_000;
/// Tellers for each unit of scale.
const TELLERS: u32 = 10;

/// A built-in script of pgbench.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Reads the balance of one account by its key.
    SelectOnly,
    /// Changes an account, a teller and a branch, and writes the history, in one transaction.
    TpcbLike,
}

impl Load {
    /// Returns its name in pgbench.
    pub fn word(self) -> &'static str {
        match self {
            Self::SelectOnly => "select-only",
            Self::TpcbLike => "tpcb-like",
        }
    }
}

/// Conditions that hold before and after any number of transactions.
pub const CONDITIONS: [Condition; 3] = [
    Condition {
        name: "the balance of an account is the sum of its history",
        sql: "SELECT COUNT(*) FROM pgbench_accounts a FULL JOIN (SELECT aid, SUM(delta) n FROM pgbench_history GROUP BY aid) h \
              ON h.aid = a.aid WHERE a.abalance IS DISTINCT FROM COALESCE(h.n, 0)",
    },
    Condition {
        name: "the balance of a teller is the sum of its history",
        sql: "SELECT COUNT(*) FROM pgbench_tellers t FULL JOIN (SELECT tid, SUM(delta) n FROM pgbench_history GROUP BY tid) h \
              ON h.tid = t.tid WHERE t.tbalance IS DISTINCT FROM COALESCE(h.n, 0)",
    },
    Condition {
        name: "the balance of a branch is the sum of its history",
        sql: "SELECT COUNT(*) FROM pgbench_branches b FULL JOIN (SELECT bid, SUM(delta) n FROM pgbench_history GROUP BY bid) h \
              ON h.bid = b.bid WHERE b.bbalance IS DISTINCT FROM COALESCE(h.n, 0)",
    },
];

/// A client with its session.
#[derive(Debug)]
pub struct Bank {
    session: Session,
    load: Load,
    scale: u32,
}

impl Bank {
    /// Opens a session.
    ///
    /// # Errors
    /// [`Error::Database`] if the server refuses it.
    pub fn new(socket: &Path, load: Load, scale: u32) -> Result<Self, Error> {
        Ok(Self { session: Session::open(socket)?, load, scale })
    }

    /// Runs a statement whose answer must have this tag.
    fn run(&mut self, sql: &str, tag: &str) -> Result<Option<String>, Failure> {
        let answer = self.session.query(sql)?;
        if answer.tag == tag {
            return Ok(answer.value);
        }
        Err(Failure::Broken(format!("the server answered {:?} to {sql}", answer.tag)))
    }

    fn select(&mut self, aid: u32) -> Result<(), Failure> {
        let sql = format!("SELECT abalance FROM pgbench_accounts WHERE aid = {aid};");
        let value = self.run(&sql, "SELECT 1")?;
        if value.as_deref().is_some_and(|v| v.parse::<i64>().is_ok()) {
            return Ok(());
        }
        Err(Failure::Broken(format!("the server answered {value:?} to {sql}")))
    }

    fn transfer(&mut self, rng: &mut Pcg64Mcg) -> Result<(), Failure> {
        let aid = rng.random_range(1..=ACCOUNTS * self.scale);
        let bid = rng.random_range(1..=self.scale);
        let tid = rng.random_range(1..=TELLERS * self.scale);
        let delta = rng.random_range(-5000..=5000);
        let change = |table: &str, column: &str, key: &str, value: u32| {
            format!("UPDATE pgbench_{table} SET {column} = {column} + {delta} WHERE {key} = {value};")
        };
        self.run("BEGIN;", "BEGIN")?;
        self.run(&change("accounts", "abalance", "aid", aid), "UPDATE 1")?;
        self.select(aid)?;
        self.run(&change("tellers", "tbalance", "tid", tid), "UPDATE 1")?;
        self.run(&change("branches", "bbalance", "bid", bid), "UPDATE 1")?;
        self.run(
            &format!(
                "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES ({tid}, {bid}, {aid}, {delta}, CURRENT_TIMESTAMP);"
            ),
            "INSERT 0 1",
        )?;
        self.run("END;", "COMMIT")?;
        Ok(())
    }
}

impl Worker for Bank {
    /// All requests are of one kind.
    fn request(&mut self, rng: &mut Pcg64Mcg) -> Result<usize, Failure> {
        let done = match self.load {
            Load::SelectOnly => self.select(rng.random_range(1..=ACCOUNTS * self.scale)),
            Load::TpcbLike => self.transfer(rng),
        };
        if matches!(done, Err(Failure::Data)) {
            self.run("ROLLBACK;", "ROLLBACK")?;
        }
        done.map(|()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::tests::{done, message, row, session};
    use super::*;
    use crate::stats;

    fn asked(load: Load, answers: &[Vec<u8>]) -> Result<usize, Failure> {
        let (session, _other) = session(&answers.concat());
        Bank { session, load, scale: 1 }.request(&mut stats::generator(1, "x"))
    }

    fn transfer() -> Vec<Vec<u8>> {
        let select = [row("-12"), done("SELECT 1")].concat();
        let [begin, update, insert, end] = ["BEGIN", "UPDATE 1", "INSERT 0 1", "COMMIT"].map(done);
        vec![begin, update.clone(), select, update.clone(), update, insert, end]
    }

    #[test]
    fn right_answers_count() {
        assert!(matches!(asked(Load::SelectOnly, &[row("0"), done("SELECT 1")]), Ok(0)));
        assert!(matches!(asked(Load::TpcbLike, &transfer()), Ok(0)));
    }

    /// A missing row, a row too many, no number, and a transaction that the server rolls back end the load.
    #[test]
    fn wrong_answers_end_the_load() {
        for answers in [
            vec![done("SELECT 0")],
            vec![row("1"), row("2"), done("SELECT 2")],
            vec![row("x"), done("SELECT 1")],
        ] {
            let found = asked(Load::SelectOnly, &answers);
            assert!(matches!(found, Err(Failure::Broken(_))), "{found:?}");
        }
        for (at, tag) in [(1, "UPDATE 0"), (5, "INSERT 0 0"), (6, "ROLLBACK")] {
            let mut answers = transfer();
            answers[at] = done(tag);
            let found = asked(Load::TpcbLike, &answers);
            assert!(matches!(found, Err(Failure::Broken(_))), "{tag}: {found:?}");
        }
    }

    /// The transaction is rolled back, and the client goes on.
    #[test]
    fn a_deadlock_is_rolled_back() {
        let mut answers = transfer();
        let deadlock = message(b'E', b"SERROR\0C40P01\0Mdeadlock detected\0\0");
        answers[3] = [deadlock, message(b'Z', b"E")].concat();
        answers.truncate(4);
        answers.push(done("ROLLBACK"));
        let found = asked(Load::TpcbLike, &answers);
        assert!(matches!(found, Err(Failure::Data)), "{found:?}");
    }
}
