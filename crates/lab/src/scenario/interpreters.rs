//! Interpreters that do the same unit of work again and again, without a client.

use crate::error::Error;
use crate::lab::Lab;
use crate::options::{Common, seconds, some};
use crate::record::Step;
use crate::service::{Units, interpreter};
use crate::whet::Sides;
use crate::windows::measure;
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options of `interpreters`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Interpreters {
    #[command(flatten)]
    pub common: Common,
    /// The interpreters, by language or name; each is one step.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,…",
        default_value = "python,ruby,php,sqlite",
        value_parser = language
    )]
    pub languages: Vec<String>,
    /// The number of pairs of windows in a step.
    #[arg(long, default_value_t = 40, value_parser = some)]
    pub pairs: usize,
    /// The length of a window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.03, value_parser = seconds)]
    pub settle: f64,
}

impl Interpreters {
    /// Measures each language in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let plan = self.common.plan(self.pairs, self.window, self.settle, false);
        for language in &self.languages {
            let recipe = interpreter(language).map_err(Error::Usage)?;
            lab.each_service(&self.common, &recipe, &[], |lab, service, place| {
                let mut sides = Sides::of(lab.whet.as_ref(), service)?;
                let step = Step::of(&service.name, "units of work", place, 1);
                let mut load = Units::of(service);
                lab.step(&step, service, &mut sides, |mut on| measure(&mut on, plan, &mut load))?;
                sides.restore()
            })?;
        }
        Ok(())
    }
}

/// Parses the name of a language.
fn language(s: &str) -> Result<String, String> {
    interpreter(s).map(|_| s.to_owned())
}
