//! TPC-C-like transactions: schema, data, the five transactions in the specification's mix, and its
//! consistency conditions.
//!
//! The load follows TPC-C 5.11, with these departures. There are no keying and thinking times: a terminal
//! sends its next transaction at once. Nothing is presented at a terminal. Deliveries run in the foreground.
//! `shrink` divides the numbers of items, customers and orders, for short tests. So results are not tpmC, and
//! may not be compared with published results.

mod check;
mod data;
mod random;
mod terminal;

pub use check::CONDITIONS;
pub use data::{create, fill};
pub use terminal::{KINDS, Terminal};

/// The size of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u32,
    /// Items, and stock entries of each warehouse: 100,000 if not shrunk.
    pub items: u32,
    /// Customers of each district, and its initial orders: 3,000 if not shrunk.
    pub customers: u32,
}

/// Districts of each warehouse.
pub const DISTRICTS: u32 = 10;

impl Scale {
    /// Returns the specification's numbers divided by `shrink`: at least 100 items and 30 customers.
    pub fn new(warehouses: u32, shrink: u32) -> Self {
        let shrink = shrink.max(1);
        Self { warehouses, items: (100_000 / shrink).max(100), customers: (3_000 / shrink).max(30) }
    }

    /// Returns the first order that is not delivered in the initial data. The orders below it, seven tenths
    /// of all, are delivered.
    pub fn first_new_order(&self) -> u32 {
        self.customers * 7 / 10 + 1
    }
}
