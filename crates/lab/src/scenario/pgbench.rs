//! PostgreSQL: the loads of pgbench, by the number of connections. The server is a family of processes.

use crate::conditions::check;
use crate::driver::Driver;
use crate::error::Error;
use crate::lab::{ActiveStep, Lab};
use crate::options::{Common, seconds, some};
use crate::record::Step;
use crate::service::Service;
use crate::service::postgres::{Bank, CONDITIONS, Load, Session, fill, postgres};
use crate::target::Target;
use crate::whet::Sides;
use crate::windows::measure;
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options of `pgbench`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Pgbench {
    #[command(flatten)]
    pub common: Common,
    /// The loads, by their names in pgbench.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LOAD,…",
        default_value = "select-only,tpcb-like"
    )]
    pub tests: Vec<Load>,
    /// The numbers of connections; each is one step.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,4,16", value_parser = some)]
    pub threads: Vec<usize>,
    /// The scale of the data: 100,000 accounts each, about 16 MB (default: the greatest number of connections, at
    /// least 10; with fewer, the connections wait for each other's branches).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: Option<u32>,
    /// A setting of the server, such as --server-option shared_buffers=1GB.
    #[arg(long, value_name = "NAME=VALUE")]
    #[serde(default)]
    pub server_option: Vec<String>,
    /// The number of pairs of windows in a step.
    #[arg(long, default_value_t = 32, value_parser = some)]
    pub pairs: usize,
    /// The length of a window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = seconds)]
    pub settle: f64,
}

impl Pgbench {
    fn scale(&self) -> u32 {
        let most = self.threads.iter().copied().max().unwrap_or(1);
        self.scale.unwrap_or_else(|| u32::try_from(most).unwrap_or(u32::MAX).clamp(10, 10_000))
    }

    /// Measures each load at each number of connections in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let most = self.threads.iter().copied().max().unwrap_or(1);
        // The lab's own sessions come on top.
        let mut more = vec!["-c".to_owned(), format!("max_connections={}", most + 20)];
        more.extend(self.server_option.iter().flat_map(|setting| ["-c".to_owned(), setting.clone()]));
        for &load in &self.tests {
            // Each load gets a new server, so clones are made for this load alone.
            lab.each_service(&self.common, &postgres(), &more, |lab, service, place| {
                lab.progress.doing("filling tables");
                fill(&lab.commands, service, self.scale()).map_err(|e| service.explain(e))?;
                let mut sides = Sides::of(lab.whet.as_ref(), service)?;
                for &threads in &self.threads {
                    let step = Step::of(&service.name, load.word(), place, threads);
                    lab.step(&step, service, &mut sides, |mut on| self.measure(&mut on, load))?;
                }
                sides.restore()
            })?;
        }
        Ok(())
    }

    fn measure(&self, on: &mut ActiveStep<'_, Service>, load: Load) -> Result<u64, Error> {
        let socket = &on.server.socket;
        let check = |on: &mut ActiveStep<'_, Service>, when| {
            let mut session = Session::open(socket)?;
            check(on, &CONDITIONS, when, |sql| session.count(sql))
        };
        check(on, "before")?;
        let client = |_| Bank::new(socket, load, self.scale());
        let clients = (0..on.step.threads).map(client).collect::<Result<_, _>>()?;
        let mut driver = Driver::start(clients, &[load.word()], on.lab.seed, None);
        let plan = self.common.plan(self.pairs, self.window, self.settle, false);
        let retried = measure(on, plan, &mut driver)?;
        // All clients must have ended before the data is checked.
        drop(driver);
        check(on, "after")?;
        Ok(retried)
    }
}
