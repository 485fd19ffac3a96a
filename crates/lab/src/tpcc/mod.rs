//! TPC-C-like transactions: schema, data, the five transactions with the specification's mix, its consistency conditions.
//!
//! After TPC-C 5.11, with these departures: no keying and thinking times (terminals ask again at once), no presentation at a
//! terminal, deliveries done in the foreground, and `shrink` divides the numbers of items, customers and orders for short tests. So results are not
//! tpmC and may not be compared with published ones.

mod check;
mod data;
mod random;
mod terminal;

pub use check::CONDITIONS;
pub use data::{create, fill};
pub use terminal::{KINDS, Terminal};

/// How much data there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u32,
    /// Items, and stock entries of each warehouse: 100,000.
    pub items: u32,
    /// Customers of each district, and its orders at first: 3,000.
    pub customers: u32,
}

/// Districts of each warehouse.
pub const DISTRICTS: u32 = 10;

impl Scale {
    /// The specification's numbers, divided by `shrink`.
    pub fn new(warehouses: u32, shrink: u32) -> Self {
        let shrink = shrink.max(1);
        Self { warehouses, items: (100_000 / shrink).max(100), customers: (3_000 / shrink).max(30) }
    }

    /// Orders below this number are delivered in the data as it is made: seven tenths of them.
    pub fn first_new_order(&self) -> u32 {
        self.customers * 7 / 10 + 1
    }
}
