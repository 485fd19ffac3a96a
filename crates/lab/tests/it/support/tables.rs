//! The data of `scaling`, without its generator.

use std::fs;
use std::path::Path;

/// Writes TPC-H's tables in small: one order for each customer, one line for each order.
pub fn small_tables(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let table = |name: &str, rows: u32, row: &dyn Fn(u32) -> String| {
        let text: String = (1..=rows).map(|n| row(n) + "|\n").collect();
        fs::write(folder.join(format!("{name}.tbl")), text).unwrap();
    };
    table("region", 1, &|n| format!("{n}|ASIA|it's"));
    table("nation", 2, &|n| format!("{n}|CHINA|1|text"));
    table("supplier", 5, &|n| format!("{n}|s|a|1|10-1|5.00|text"));
    table("customer", 50, &|n| format!("{n}|c|a|1|13-1|5.00|BUILDING|text"));
    table("part", 20, &|n| format!("{n}|green|m|Brand#12|PROMO|3|SM BOX|9.00|text"));
    table("partsupp", 20, &|n| format!("{n}|{}|7|1.00|text", n % 5 + 1));
    table("orders", 50, &|n| format!("{n}|{n}|F|9.00|1994-02-01|1-URGENT|k|0|text"));
    table("lineitem", 50, &|n| {
        let (part, supplier) = (n % 20 + 1, n % 5 + 1);
        format!(
            "{n}|{part}|{supplier}|1|3.00|9.00|0.06|0.01|R|F|1994-03-01|1994-03-05|1994-03-09|NONE|MAIL|text"
        )
    });
}
