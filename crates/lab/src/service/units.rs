//! The load of a program that works by itself and prints a line for each unit of work.

use super::Service;
use crate::error::Error;
use crate::load::Load;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the units of a program.
#[derive(Debug)]
pub struct Units {
    done: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Units {
    /// Counts the lines that a program prints from now on.
    pub fn of(service: &mut Service) -> Self {
        let (done, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let units = Self { done: Arc::clone(&done), ended: Arc::clone(&ended) };
        let output = service.output();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            if let Some(mut stream) = output {
                while let Ok(n @ 1..) = stream.read(&mut bytes) {
                    let lines = bytes.iter().take(n).filter(|b| **b == b'\n').count();
                    done.fetch_add(lines as u64, Ordering::Relaxed);
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
        units
    }
}

impl Load for Units {
    fn check(&mut self) -> Result<(), Error> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(Error::Load { load: "the program".to_owned(), why: "ended early".to_owned() });
        }
        Ok(())
    }

    fn work(&self) -> Option<u64> {
        Some(self.done.load(Ordering::Relaxed))
    }
}
