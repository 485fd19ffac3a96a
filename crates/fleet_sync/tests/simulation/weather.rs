//! An object store in memory with the faults of a real one: latency, failures, outages, late writes, and
//! writes that arrive although the store reported a failure. Time is tokio's paused clock.

#![allow(dead_code, reason = "the test and the bench read different figures")]

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Rng;
use tokio::time::{Instant, sleep};

/// The requests to the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub gets: u64,
    pub unchanged: u64,
    pub puts: u64,
    pub lists: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub failed: u64,
}

/// How bad the weather is: failures in a thousand requests.
#[derive(Clone, Copy, Debug)]
pub struct Climate {
    /// Nothing happens, and the caller gets an error.
    pub lost: u64,
    /// A write happens, and the caller gets an error.
    pub unanswered: u64,
    /// A write happens minutes later, and the caller gets an error.
    pub late: u64,
    /// Nothing can be reached from the first moment to the second.
    pub outage: [Duration; 2],
}

#[derive(Debug)]
pub struct Weather {
    inner: Arc<InMemory>,
    begin: Instant,
    epoch: u64,
    climate: Climate,
    times: Arc<Mutex<HashMap<Path, u64>>>,
    dice: Mutex<Rng>,
    pub traffic: Mutex<Traffic>,
}

impl Weather {
    pub fn new(seed: u64, epoch: u64, climate: Climate) -> Self {
        Self {
            inner: Arc::new(InMemory::new()),
            begin: Instant::now(),
            epoch,
            climate,
            times: Arc::default(),
            dice: Mutex::new(Rng(seed)),
            traffic: Mutex::default(),
        }
    }

    /// The store's time, in seconds of the Unix epoch.
    pub fn now(&self) -> u64 {
        self.epoch + self.begin.elapsed().as_secs()
    }

    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let seconds = self.times.lock().unwrap().get(&meta.location).copied().unwrap_or(self.epoch);
        meta.last_modified = DateTime::<Utc>::from_timestamp(seconds as i64, 0).unwrap();
        meta
    }

    fn roll(&self, n: u64) -> u64 {
        self.dice.lock().unwrap().below(n)
    }

    fn failure(&self) -> Error {
        self.traffic.lock().unwrap().failed += 1;
        Error::Generic { store: "weather", source: "no answer".into() }
    }

    /// Waits as a request does; an error if it gets lost.
    async fn pass(&self) -> Result<()> {
        sleep(Duration::from_millis(5 + self.roll(80))).await;
        let out = self.begin.elapsed();
        let [from, to] = self.climate.outage;
        if (from..to).contains(&out) || self.roll(1000) < self.climate.lost {
            sleep(Duration::from_secs(2)).await;
            return Err(self.failure());
        }
        Ok(())
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("weather")
    }
}

#[async_trait]
impl ObjectStore for Weather {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.pass().await?;
        {
            let mut traffic = self.traffic.lock().unwrap();
            traffic.puts += 1;
            traffic.bytes_up += payload.content_length() as u64;
        }
        let roll = self.roll(1000);
        if roll < self.climate.late {
            let (inner, times, at) = (self.inner.clone(), self.times.clone(), at.clone());
            let (wait, begin, epoch) = (Duration::from_secs(60 + self.roll(600)), self.begin, self.epoch);
            tokio::spawn(async move {
                sleep(wait).await;
                if inner.put_opts(&at, payload, options).await.is_ok() {
                    times.lock().unwrap().insert(at, epoch + begin.elapsed().as_secs());
                }
            });
            return Err(self.failure());
        }
        let result = self.inner.put_opts(at, payload, options).await?;
        self.times.lock().unwrap().insert(at.clone(), self.now());
        if roll < self.climate.late + self.climate.unanswered {
            return Err(self.failure());
        }
        Ok(result)
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.pass().await?;
        self.traffic.lock().unwrap().gets += 1;
        match self.inner.get_opts(at, options).await {
            Ok(mut result) => {
                result.meta = self.dated(result.meta);
                self.traffic.lock().unwrap().bytes_down += result.meta.size;
                Ok(result)
            }
            Err(e) => {
                self.traffic.lock().unwrap().unchanged += 1;
                Err(e)
            }
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        // A list is requested as a whole, so its latency is that of the request before it.
        let times = self.times.clone();
        let epoch = self.epoch;
        let all = futures_util::FutureExt::now_or_never(self.inner.list(prefix).collect::<Vec<_>>());
        let all = all.unwrap_or_default();
        {
            let mut traffic = self.traffic.lock().unwrap();
            traffic.lists += 1 + all.len() as u64 / 1000;
            traffic.bytes_down += all.len() as u64 * 300;
        }
        let lost = self.roll(1000) < self.climate.lost
            || (self.climate.outage[0]..self.climate.outage[1]).contains(&self.begin.elapsed());
        if lost {
            let e = self.failure();
            return stream::once(async { Err(e) }).boxed();
        }
        let dated = all.into_iter().map(move |meta| {
            meta.map(|mut meta| {
                let seconds = times.lock().unwrap().get(&meta.location).copied().unwrap_or(epoch);
                meta.last_modified = DateTime::<Utc>::from_timestamp(seconds as i64, 0).unwrap();
                meta
            })
        });
        stream::iter(dated).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.pass().await?;
        self.traffic.lock().unwrap().lists += 1;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, o).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(at)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
