//! The time of each stage of emission.

use crate::base::phases::{Span, Spans};
use emit::Stage;
use std::cell::Cell;
use std::time::Instant;

/// A clock that is set to each stage as it begins. The last stage ends when the clock is dropped.
pub(super) struct StageClock<'a> {
    spans: &'a Spans,
    now: Cell<(Span, Instant)>,
}

impl<'a> StageClock<'a> {
    pub(super) fn start(spans: &'a Spans) -> Self {
        Self { spans, now: Cell::new((Span::Emitting, Instant::now())) }
    }

    /// Begins a stage.
    pub(super) fn begin(&self, stage: Stage) {
        let span = match stage {
            Stage::Verify => Span::Verifying,
            Stage::Plan | Stage::Encode | Stage::Join => Span::Emitting,
        };
        if span != self.now.get().0 {
            self.end();
            self.now.set((span, Instant::now()));
        }
    }

    fn end(&self) {
        let (span, since) = self.now.get();
        self.spans.add(span, since.elapsed());
    }
}

impl Drop for StageClock<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
