//! Redis and memcached: reads and writes of random keys, all of which exist.

use crate::driver::Driver;
use crate::error::Error;
use crate::lab::Lab;
use crate::options::{Common, seconds, some};
use crate::record::Step;
use crate::service::{Client, Protocol, key_value};
use crate::whet::Sides;
use crate::windows::measure;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Options of `redis` and `memcached`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct KeyValue {
    #[command(flatten)]
    pub common: Common,
    /// The numbers of connections; each is one step.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "4,16", value_parser = some)]
    pub threads: Vec<usize>,
    /// The number of keys.
    #[arg(long, default_value_t = 10_000, value_parser = some)]
    pub keys: usize,
    /// The size of a value. Bytes.
    #[arg(long, default_value_t = 100, value_parser = some)]
    pub bytes: usize,
    /// The share of writes. Percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub writes: u8,
    /// The number of pairs of windows in a step.
    #[arg(long, default_value_t = 40, value_parser = some)]
    pub pairs: usize,
    /// The length of a window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.03, value_parser = seconds)]
    pub settle: f64,
}

impl KeyValue {
    /// Measures each number of connections in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab, protocol: Protocol) -> Result<(), Error> {
        let plan = self.common.plan(self.pairs, self.window, self.settle, false);
        let writes = f64::from(self.writes) / 100.0;
        lab.each_service(&self.common, &key_value(protocol), &[], |lab, service, place| {
            let client = |socket: &Path| Client::of_keys(socket, protocol, self.keys, writes, self.bytes);
            client(&service.socket)?.fill()?;
            let mut sides = Sides::of(lab.whet.as_ref(), service)?;
            for &threads in &self.threads {
                let load = format!("{}% writes", self.writes);
                let step = Step::of(&service.name, &load, place, threads);
                lab.step(&step, service, &mut sides, |mut on| {
                    let clients =
                        (0..threads).map(|_| client(&on.server.socket)).collect::<Result<_, _>>()?;
                    let mut load = Driver::start(clients, &["read", "write"], on.lab.seed, None);
                    measure(&mut on, plan, &mut load)
                })?;
            }
            sides.restore()
        })
    }
}
