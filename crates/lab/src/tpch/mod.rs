//! TPC-H's tables and queries. DuckDB's generator makes the data as files, from which the tables are filled.

use crate::command::{Commands, Spec, find};
use crate::db::{Address, Db};
use crate::error::Error;
use crate::interrupt::Interrupt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

const QUERIES: &str = include_str!("queries.sql");
/// The script that makes the files. It is no part of the lab's program, as the generator is a Python package.
const GENERATOR: &str = include_str!("generate.py");
/// Rows in one INSERT.
const BATCH: usize = 500;

/// Name and columns of each table. The keys are those that the specification allows: primary and foreign
/// keys.
const TABLES: [(&str, &str); 8] = [
    ("region", "r_regionkey INT PRIMARY KEY, r_name CHAR(25), r_comment VARCHAR(152)"),
    (
        "nation",
        "n_nationkey INT PRIMARY KEY, n_name CHAR(25), n_regionkey INT, n_comment VARCHAR(152), KEY (n_regionkey)",
    ),
    (
        "supplier",
        "s_suppkey INT PRIMARY KEY, s_name CHAR(25), s_address VARCHAR(40), s_nationkey INT, s_phone CHAR(15), s_acctbal DECIMAL(15,2), \
         s_comment VARCHAR(101), KEY (s_nationkey)",
    ),
    (
        "customer",
        "c_custkey INT PRIMARY KEY, c_name VARCHAR(25), c_address VARCHAR(40), c_nationkey INT, c_phone CHAR(15), c_acctbal DECIMAL(15,2), \
         c_mktsegment CHAR(10), c_comment VARCHAR(117), KEY (c_nationkey)",
    ),
    (
        "part",
        "p_partkey INT PRIMARY KEY, p_name VARCHAR(55), p_mfgr CHAR(25), p_brand CHAR(10), p_type VARCHAR(25), p_size INT, p_container CHAR(10), \
         p_retailprice DECIMAL(15,2), p_comment VARCHAR(23)",
    ),
    (
        "partsupp",
        "ps_partkey INT, ps_suppkey INT, ps_availqty INT, ps_supplycost DECIMAL(15,2), ps_comment VARCHAR(199), \
         PRIMARY KEY (ps_partkey, ps_suppkey), KEY (ps_suppkey)",
    ),
    (
        "orders",
        "o_orderkey INT PRIMARY KEY, o_custkey INT, o_orderstatus CHAR(1), o_totalprice DECIMAL(15,2), o_orderdate DATE, o_orderpriority CHAR(15), \
         o_clerk CHAR(15), o_shippriority INT, o_comment VARCHAR(79), KEY (o_custkey)",
    ),
    (
        "lineitem",
        "l_orderkey INT, l_partkey INT, l_suppkey INT, l_linenumber INT, l_quantity DECIMAL(15,2), l_extendedprice DECIMAL(15,2), \
         l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag CHAR(1), l_linestatus CHAR(1), l_shipdate DATE, l_commitdate DATE, \
         l_receiptdate DATE, l_shipinstruct CHAR(25), l_shipmode CHAR(10), l_comment VARCHAR(44), PRIMARY KEY (l_orderkey, l_linenumber), \
         KEY (l_partkey, l_suppkey), KEY (l_suppkey)",
    ),
];

/// Returns the 22 queries.
pub fn queries() -> Vec<&'static str> {
    QUERIES.split("------\n").skip(1).map(str::trim).collect()
}

/// Makes one file for each table in `folder`, with fields separated by bars. `factor` is the scale factor.
///
/// # Errors
/// [`Error::Missing`] if there is no Python with DuckDB and its extension; [`Error::Command`] if the
/// generator fails.
pub fn generate(commands: &Commands, factor: f64, folder: &Path) -> Result<(), Error> {
    let python = find("python3")
        .ok_or_else(|| Error::Missing { program: "python3".into(), get: "apt-get install python3".into() })?;
    std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
    let spec = Spec::new(python).args(["-c", GENERATOR]).arg(factor.to_string()).arg(folder);
    let answer = commands.run(&spec, Duration::from_secs(3600))?;
    match answer.status.code() {
        Some(0) => Ok(()),
        Some(3) => Err(Error::Missing {
            program: "duckdb and duckdb-extension-tpch for python3".into(),
            get: "pip install duckdb==1.5.5 duckdb-extension-tpch==1.5.5 (any two of one version), or name a folder of table files with --data".into(),
        }),
        _ => Err(Error::Command {
            program: "the generator of TPC-H's data".into(),
            how: format!("failed ({})", answer.status),
            words: crate::command::tail(&answer.err),
        }),
    }
}

/// Creates all tables and fills them from files named after them (`.tbl`).
///
/// # Errors
/// An error if a file cannot be read; the server's error; [`Error::Interrupted`] on an interrupt.
pub fn fill(address: &Address, folder: &Path, interrupt: &Interrupt) -> Result<(), Error> {
    let mut db = address.enter()?;
    for (table, columns) in TABLES {
        db.run(&format!("CREATE TABLE {table} ({columns}) ENGINE=InnoDB"))?;
        let path = folder.join(format!("{table}.tbl"));
        let file = File::open(&path).map_err(Error::file(&path))?;
        let mut rows = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(Error::file(&path))?;
            rows.push(row(&line));
            if rows.len() == BATCH {
                interrupt.check()?;
                insert(&mut db, table, &mut rows)?;
            }
        }
        insert(&mut db, table, &mut rows)?;
        db.run(&format!("ANALYZE TABLE {table}"))?;
    }
    Ok(())
}

fn insert(db: &mut Db, table: &str, rows: &mut Vec<String>) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let done = db.run(&format!("INSERT INTO {table} VALUES {}", rows.join(",")));
    rows.clear();
    done
}

/// Turns a line of a file into SQL. dbgen ends its lines with a bar, other programs do not.
fn row(line: &str) -> String {
    let fields = line.strip_suffix('|').unwrap_or(line).split('|');
    let quoted: Vec<String> =
        fields.map(|f| format!("'{}'", f.replace('\\', "\\\\").replace('\'', "''"))).collect();
    format!("({})", quoted.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_22_queries() {
        assert_eq!(queries().len(), 22);
        assert!(queries().iter().all(|q| q.starts_with("SELECT") && !q.contains("--")));
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(row("1|it's|a\\b|"), r"('1','it''s','a\\b')");
    }
}
