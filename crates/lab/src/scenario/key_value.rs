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
use serde::{Deserialize, Deserializer, Serialize};
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
    /// The shares of writes; each is a load. Percent.
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,…", default_value = "10", value_parser = clap::value_parser!(u8).range(0..=100))]
    #[serde(deserialize_with = "one_or_many")]
    pub writes: Vec<u8>,
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

/// Reads the shares of a run, of which a lab of earlier versions recorded one alone.
fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Shares {
        One(u8),
        Many(Vec<u8>),
    }
    Ok(match Shares::deserialize(from)? {
        Shares::One(share) => vec![share],
        Shares::Many(shares) => shares,
    })
}

impl KeyValue {
    /// Measures each share of writes at each number of connections in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab, protocol: Protocol) -> Result<(), Error> {
        let plan = self.common.plan(self.pairs, self.window, self.settle, false);
        for &percent in &self.writes {
            let writes = f64::from(percent) / 100.0;
            // Each load gets a new process, so clones are made for this load alone.
            lab.each_service(&self.common, &key_value(protocol), &[], |lab, service, place| {
                let client = |socket: &Path| Client::of_keys(socket, protocol, self.keys, writes, self.bytes);
                client(&service.socket)?.fill()?;
                let mut sides = Sides::of(lab.whet.as_ref(), service)?;
                for &threads in &self.threads {
                    let step = Step::of(&service.name, &format!("{percent}% writes"), place, threads);
                    lab.step(&step, service, &mut sides, |mut on| {
                        let clients =
                            (0..threads).map(|_| client(&on.server.socket)).collect::<Result<_, _>>()?;
                        let mut load = Driver::start(clients, &["read", "write"], on.lab.seed, None);
                        measure(&mut on, plan, &mut load)
                    })?;
                }
                sides.restore()
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: KeyValue,
    }

    #[test]
    fn records_of_one_share_of_writes_and_of_several_can_be_read() {
        let several = Line::parse_from(["lab", "--writes=0,50"]).options;
        let mut record = serde_json::to_value(&several).unwrap();
        let read = |record: &serde_json::Value| -> Vec<u8> {
            serde_json::from_value::<KeyValue>(record.clone()).unwrap().writes
        };
        assert_eq!(read(&record), [0, 50]);
        record["writes"] = 10.into();
        assert_eq!(read(&record), [10]);
    }
}
