//! A run's folder. The run writes it; `report`, `compare` and `resume` read it.

use crate::clock;
use crate::error::Error;
use crate::record::{Event, Head, Record, Step, VERSION};
use flate2::read::GzDecoder;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The raw data of a published run: `data.jsonl`, compressed by gzip.
const COMPRESSED: &str = "data.jsonl.gz";
/// The most bytes that compressed data may become. A run of a day writes some tens of MB.
const MOST_DATA: u64 = 1 << 30;

/// A folder that is being written.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    data: File,
    written: u64,
    done: BTreeSet<Step>,
}

/// A run that was read from its folder.
#[derive(Debug)]
pub struct Run {
    /// The folder.
    pub path: PathBuf,
    /// The contents of `run.json`.
    pub head: Head,
    /// All records, those of unfinished attempts included.
    pub records: Vec<Record>,
}

impl Folder {
    /// Creates the folder of a new run. `path` must not hold a run.
    ///
    /// # Errors
    /// [`Error::Usage`] if `path` holds a run; [`Error::File`] if a file cannot be created.
    pub fn create(path: &Path, head: &Head) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(Error::file(path))?;
        if path.join("run.json").exists() {
            return Err(Error::Usage(format!(
                "{} holds a run already; `whet-lab resume` goes on with it",
                path.display()
            )));
        }
        let text = serde_json::to_string_pretty(head).map_err(|e| Error::Bug(e.to_string()))?;
        let file = path.join("run.json");
        fs::write(&file, text + "\n").map_err(Error::file(&file))?;
        let data = path.join("data.jsonl");
        let data = File::create_new(&data).map_err(Error::file(&data))?;
        Ok(Self { path: path.to_owned(), data, written: 0, done: BTreeSet::new() })
    }

    /// Opens the folder of an earlier run to continue it. A last line that was cut off (the lab was killed,
    /// the disk was full) is removed.
    ///
    /// # Errors
    /// [`Error::Usage`] if the run's data is compressed; [`Error::File`] if `data.jsonl` cannot be read or
    /// written.
    pub fn reopen(run: &Run) -> Result<Self, Error> {
        let path = run.path.join("data.jsonl");
        let packed = run.path.join(COMPRESSED);
        if !path.exists() && packed.exists() {
            return Err(Error::Usage(format!(
                "the data of this run is compressed; `gunzip {}`, then resume",
                packed.display()
            )));
        }
        let bytes = fs::read(&path).map_err(Error::file(&path))?;
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1) as u64;
        let mut data = OpenOptions::new().write(true).open(&path).map_err(Error::file(&path))?;
        data.set_len(whole).and_then(|()| data.seek(SeekFrom::End(0))).map_err(Error::file(&path))?;
        Ok(Self { path: run.path.clone(), data, written: whole, done: done(&run.records) })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a step is finished, in this run or in one that it resumes.
    pub fn has(&self, step: &Step) -> bool {
        self.done.contains(step)
    }

    /// Appends a record, whole or not at all: after a failed write the file is cut to its old length. The
    /// record that ends a step is also synced to the disk, with all records before it.
    ///
    /// # Errors
    /// [`Error::File`], most likely because the disk is full.
    pub fn add(&mut self, step: &Step, event: Event) -> Result<(), Error> {
        let ends = matches!(event, Event::Done { .. } | Event::Broken { .. });
        let record = Record { step: step.clone(), event };
        let mut line = serde_json::to_vec(&record).map_err(|e| Error::Bug(e.to_string()))?;
        line.push(b'\n');
        let mut write = || {
            self.data.write_all(&line)?;
            if ends { self.data.sync_data() } else { Ok(()) }
        };
        if let Err(source) = write() {
            let _ = self.data.set_len(self.written).and_then(|()| self.data.seek(SeekFrom::End(0)));
            return Err(Error::File { path: self.path.join("data.jsonl"), source });
        }
        self.written += line.len() as u64;
        if matches!(record.event, Event::Done { .. }) {
            self.done.insert(step.clone());
        }
        Ok(())
    }

    /// Records that a step is finished, with the number of its queries that failed for reasons of the data.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn done(&mut self, step: &Step, retried: u64) -> Result<(), Error> {
        self.add(step, Event::Done { at: clock::now(), retried })
    }
}

/// Returns the content of `data.jsonl`, or that of the compressed file if there is no other.
fn data(path: &Path) -> std::io::Result<String> {
    match fs::read_to_string(path.join("data.jsonl")) {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        other => return other,
    }
    // The error of a folder without data names the file that a run writes.
    let Ok(packed) = File::open(path.join(COMPRESSED)) else { return Err(ErrorKind::NotFound.into()) };
    let mut text = String::new();
    GzDecoder::new(packed).take(MOST_DATA + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_DATA {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

fn done(records: &[Record]) -> BTreeSet<Step> {
    records.iter().filter(|r| matches!(r.event, Event::Done { .. })).map(|r| r.step.clone()).collect()
}

impl Run {
    /// Reads a folder. A cut-off last line is left out. Any other line that cannot be read is an error.
    ///
    /// # Errors
    /// [`Error::NoRun`] if the folder holds no run, or a run of another version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let no_run = |why: String| Error::NoRun { path: path.to_owned(), why };
        let head = fs::read_to_string(path.join("run.json")).map_err(|e| no_run(format!("run.json: {e}")))?;
        let value: serde_json::Value =
            serde_json::from_str(&head).map_err(|e| no_run(format!("run.json: {e}")))?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            let found = version.map_or("none".to_owned(), |v| v.to_string());
            return Err(no_run(format!("its version is {found}, this lab reads {VERSION}")));
        }
        let head: Head = serde_json::from_value(value).map_err(|e| no_run(format!("run.json: {e}")))?;
        let text = data(path).map_err(|e| no_run(format!("data.jsonl: {e}")))?;
        let whole = text.rfind('\n').map_or(0, |i| i + 1);
        let mut records = Vec::new();
        for (n, line) in text.get(..whole).unwrap_or_default().lines().enumerate() {
            let record =
                serde_json::from_str(line).map_err(|e| no_run(format!("data.jsonl, line {}: {e}", n + 1)))?;
            records.push(record);
        }
        Ok(Self { path: path.to_owned(), head, records })
    }

    /// Returns all steps that were begun, in order, with the events of the last attempt of each.
    pub fn steps(&self) -> Vec<Measured<'_>> {
        let mut steps: Vec<Measured<'_>> = Vec::new();
        for record in &self.records {
            let at = steps.iter().position(|s| *s.step == record.step);
            let at = at.unwrap_or_else(|| {
                steps.push(Measured { step: &record.step, events: Vec::new(), whole: false });
                steps.len() - 1
            });
            let Some(entry) = steps.get_mut(at) else { continue };
            match &record.event {
                Event::Begin { .. } => {
                    entry.events.clear();
                    entry.whole = false;
                }
                Event::Done { .. } => entry.whole = true,
                _ => {}
            }
            entry.events.push(&record.event);
        }
        steps
    }
}

/// The measurements of a step.
#[derive(Debug)]
pub struct Measured<'a> {
    /// The step.
    pub step: &'a Step,
    /// The events of its last attempt.
    pub events: Vec<&'a Event>,
    /// Whether the last attempt was finished.
    pub whole: bool,
}
