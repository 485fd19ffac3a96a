//! What the measurement needs of a load, whoever generates it.

use crate::error::Error;
use crate::record::{Latency, Side};
use crate::transactions::Transactions;

/// The figures that a load reports about once a second.
#[derive(Clone, Copy, Debug)]
pub struct LoadFigures {
    /// Transactions per second.
    pub tps: f64,
    /// Mean response time, ms.
    pub response_ms: f64,
    /// 95th percentile of the response times, ms.
    pub p95_ms: f64,
}

/// A running load.
pub trait Load {
    /// Checks that the load still runs.
    ///
    /// # Errors
    /// An error if the load has ended or fails.
    fn check(&mut self) -> Result<(), Error>;

    /// Returns how many requests the load has done so far. `None` if it does not count them: then the
    /// server's statements count.
    fn work(&self) -> Option<u64> {
        None
    }

    /// Sets the side that requests belong to from now on; `None` while the load settles.
    fn side(&mut self, _side: Option<Side>) {}

    /// Returns the figures since the last call. `None` if there are none.
    fn figures(&mut self) -> Option<LoadFigures> {
        None
    }

    /// Returns the response times of all transactions so far, where the load counts them for each window.
    ///
    /// # Errors
    /// An error if the times cannot be read.
    fn transactions(&self) -> Result<Option<Transactions>, Error> {
        Ok(None)
    }

    /// Returns the latencies measured so far, by side and kind. Empty if the load measures none.
    fn latencies(&self) -> Vec<Latency> {
        Vec::new()
    }

    /// Returns how many requests failed for reasons of the data.
    fn retried(&self) -> u64 {
        0
    }
}
