//! Answers the calls of the daemon's callers.

use crate::exposition::{Family, open_metrics};
use crate::metrics;
use crate::proto::{Answer, Call, DaemonStatus, StandBack, TargetView};
use crate::server::{accepted, refusal};
use crate::states::{Event, State, Wish};
use crate::supervisor::{Daemon, Entry};
use crate::target_metrics::{self, Figures};
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;
use tracing::info;

impl Daemon {
    /// Answers one call. Methods that only read are open to every user. Methods that change something require
    /// `may_command`.
    pub(crate) fn answer(&mut self, call: &Call, may_command: bool) -> Answer {
        match call.method.as_str() {
            "whet.Status" => match serde_json::to_value(self.status()) {
                Ok(value) => accepted(value),
                Err(e) => refusal("whet.Fault", &e.to_string()),
            },
            "whet.Metrics" => accepted(json!({ "text": open_metrics(&self.metrics()) })),
            "whet.StandBack" | "whet.Reload" | "whet.Stop" if !may_command => {
                refusal("whet.NotPermitted", "only root and the daemon's own user may command it")
            }
            "whet.StandBack" => match serde_json::from_value(call.parameters.clone()) {
                Ok(wish) => {
                    self.stand_back(wish);
                    accepted(json!({}))
                }
                Err(e) => refusal("whet.BadCall", &e.to_string()),
            },
            "whet.Reload" => {
                self.reload();
                match &self.config_error {
                    None => accepted(json!({})),
                    Some(e) => refusal("whet.BadConfig", e),
                }
            }
            "whet.Stop" => {
                info!("a stop was requested");
                self.is_stopping = true;
                accepted(json!({ "pid": std::process::id() }))
            }
            other => {
                let shown: String = other.chars().take(80).collect();
                refusal("whet.UnknownMethod", &format!("there is no method {shown:?}"))
            }
        }
    }

    fn stand_back(&mut self, StandBack { pid, wish }: StandBack) {
        if pid.is_none() && wish == Wish::Undo && self.config.is_switched_off() {
            // The unit `whet-off.service` undoes all targets for the kill-switch file, and so does the daemon now. When
            // the file is gone, the clones are put back; after an undo by hand they would not be.
            self.next_switch = self.now();
            return;
        }
        // A member stands for its family.
        let head =
            |pid: i32| self.targets.iter().find(|(_, e)| e.members.contains(pid)).map_or(pid, |e| *e.0);
        let pid = pid.map(head);
        if wish == Wish::Undo {
            self.let_go(pid);
        }
        let all: Vec<i32> =
            self.targets.keys().copied().filter(|p| pid.is_none_or(|pid| pid == *p)).collect();
        for pid in all {
            self.apply(pid, Event::ByHand(wish));
        }
        self.keep();
    }

    fn status(&self) -> DaemonStatus {
        let now = self.now();
        let view = |e: &Entry| TargetView {
            pid: e.id.pid,
            exe: e.exe.clone(),
            members: e.members.len(),
            state: e.life.state,
            reason: e.life.reason.clone(),
            since: ago(now.saturating_sub(e.life.since)),
            cpu_percent: (e.life.cpu_percent * 10.0).round() / 10.0,
            hot_share: e.life.fit.map(|f| f.hot),
            factor: e.life.verdict.map(|v| v.factor),
            started_from: e.warm.map(|w| w.source),
        };
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            uptime_seconds: now.as_secs(),
            switched_off: self.off,
            config_error: self.config_error.clone(),
            watched: self.targets.len(),
            targets: self.targets.values().chain(&self.lost).map(view).collect(),
        }
    }

    /// Returns all metrics.
    pub(crate) fn metrics(&self) -> Vec<Family> {
        let mut states = [0u64; State::ALL.len()];
        for state in self.targets.values().map(|e| e.life.state) {
            if let Some(n) = State::ALL.iter().position(|s| *s == state).and_then(|i| states.get_mut(i)) {
                *n += 1;
            }
        }
        let mut families = self.counted.families();
        families.extend(metrics::of_host(states, self.off, self.config_error.is_some()));
        families.extend(target_metrics::families(self.targets.values().map(|e| Figures {
            pid: e.id.pid,
            exe: &e.exe,
            life: &e.life,
            held: e.held.as_ref(),
            stops: e.stops,
        })));
        families
    }
}

/// Returns the time of day `passed` ago, in UTC and to the second, as RFC 3339 writes it.
fn ago(passed: Duration) -> String {
    let then = i64::try_from(passed.as_secs()).ok().map(|s| Timestamp::now().as_second().saturating_sub(s));
    then.and_then(|s| Timestamp::from_second(s).ok()).map_or_else(String::new, |t| t.to_string())
}
