//! The object store: the few requests that the fleet makes, with a limit on time and size.

use crate::{Error, Trouble};
use fleet::{Build, Digest, HostId, Key, Program, Verdict, Votes};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::collections::BTreeSet;
use std::error::Error as _;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// The longest time for one request.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes of an object.
const LIMIT: u64 = (fleet::CONTRIBUTION_LIMIT + 4096) as u64;
/// The most objects in one list.
const LIST_LIMIT: usize = 100_000;

/// The store, and the folder in it.
#[derive(Clone, Debug)]
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// An object that was read under the condition that it has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// There is no such object.
    Missing,
    /// The object has not changed since it was read.
    Same,
    /// Its bytes, and its tag.
    New(Vec<u8>, Option<String>),
}

/// An object in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its program.
    pub program: Option<Program>,
    /// Its name.
    pub key: Key,
    /// The store's time of it: seconds of the Unix epoch.
    pub stored: u64,
}

impl Remote {
    /// Uses a folder of a store.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self { store, prefix }
    }

    /// Opens the store at an address, such as `file:///srv/whet` or `s3://bucket/folder`. `options` are the
    /// store's own, such as credentials.
    ///
    /// # Errors
    /// [`Error::Usage`] if the address is wrong, or if this program was built without this kind of store;
    /// [`Error::Store`] if a folder is not there.
    pub fn open(address: &str, options: &[(String, String)]) -> Result<Self, Error> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::Usage(format!("the store {address:?} cannot be used: {why}"))
        };
        let url = url(address).map_err(|e| wrong(&e))?;
        if url.scheme() == "file" && url.to_file_path().is_ok_and(|folder| !folder.is_dir()) {
            // It may be a mount that is missing now. Nothing must be written in its place.
            let why = format!("{address} is no folder");
            return Err(Error::Store { what: "open a folder".to_owned(), kind: Trouble::Unreachable, why });
        }
        let options = options.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let (store, prefix) = object_store::parse_url_opts(&url, options).map_err(|e| wrong(&e))?;
        Ok(Self { store: Arc::from(store), prefix })
    }

    fn path(&self, program: &Program, key: &Key) -> Path {
        self.at(&key.path(program))
    }

    fn at(&self, path: &str) -> Path {
        let parts = self.prefix.parts().chain(path.split('/').map(Into::into));
        Path::from_iter(parts)
    }

    /// Reads an object; returns `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Refused`] if it is too large.
    pub async fn get(&self, program: &Program, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        Ok(match self.get_if_changed(program, key, None).await? {
            Changed::New(bytes, _) => Some(bytes),
            Changed::Missing | Changed::Same => None,
        })
    }

    /// Reads an object, unless it still has the tag with which it was read before.
    ///
    /// # Errors
    /// Same as [`Remote::get`].
    pub async fn get_if_changed(
        &self,
        program: &Program,
        key: &Key,
        tag: Option<&str>,
    ) -> Result<Changed, Error> {
        let path = self.path(program, key);
        let options = GetOptions { if_none_match: tag.map(str::to_owned), ..GetOptions::default() };
        let read = async {
            let result = self.store.get_opts(&path, options).await?;
            if result.meta.size > LIMIT {
                return Ok(None);
            }
            let tag = result.meta.e_tag.clone();
            Ok(Some((result.bytes().await?, tag)))
        };
        match patiently(read).await {
            Ok(Some((bytes, tag))) => Ok(Changed::New(bytes.to_vec(), tag)),
            Ok(None) => {
                let limit = usize::try_from(LIMIT).unwrap_or(usize::MAX);
                Err(Error::Refused { object: path.to_string(), why: fleet::Refused::TooLarge { limit } })
            }
            Err(object_store::Error::NotFound { .. }) => Ok(Changed::Missing),
            Err(object_store::Error::NotModified { .. }) => Ok(Changed::Same),
            Err(e) => Err(trouble(&format!("read {path}"), &e)),
        }
    }

    /// Writes an object that must not exist. Returns whether this call wrote it.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn create(&self, program: &Program, key: &Key, bytes: Vec<u8>) -> Result<bool, Error> {
        let path = self.path(program, key);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match patiently(self.store.put_opts(&path, PutPayload::from(bytes), options)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(false)
            }
            Err(e) => Err(trouble(&format!("write {path}"), &e)),
        }
    }

    /// Writes an object, whether or not it exists.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn replace(&self, program: &Program, key: &Key, bytes: Vec<u8>) -> Result<(), Error> {
        let path = self.path(program, key);
        let written = patiently(self.store.put(&path, PutPayload::from(bytes))).await;
        written.map(|_| ()).map_err(|e| trouble(&format!("write {path}"), &e))
    }

    /// Returns the store's time of an object, in seconds of the Unix epoch.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn stored(&self, program: &Program, key: &Key) -> Result<u64, Error> {
        let path = self.path(program, key);
        let meta = patiently(self.store.head(&path)).await;
        meta.map(|m| seconds(&m)).map_err(|e| trouble(&format!("read {path}"), &e))
    }

    /// Lists up to `most` objects below a folder whose paths come after `after`. Objects of other names are left out.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn list(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Listed>, Error> {
        let prefix = self.at(folder);
        let listing = async {
            let stream = match after {
                Some(after) => self.store.list_with_offset(Some(&prefix), &self.at(after)),
                None => self.store.list(Some(&prefix)),
            };
            let mut out = Vec::new();
            let mut stream = stream;
            while let Some(meta) = stream.try_next().await? {
                out.extend(self.listed(&meta));
                if out.len() >= most.min(LIST_LIMIT) {
                    break;
                }
            }
            Ok(out)
        };
        match patiently(listing).await {
            Ok(out) => Ok(out),
            Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
            Err(e) => Err(trouble(&format!("list {prefix}"), &e)),
        }
    }

    /// Counts the votes of a program's hosts on an aggregate. A host that found harm later has also voted for it
    /// before: its vote for harm counts.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn votes(&self, program: &Program, digest: &Digest) -> Result<Votes, Error> {
        let hosts = async |harm: bool| -> Result<BTreeSet<HostId>, Error> {
            let path = Key::Vote { digest: *digest, harm, host: HostId([0; 16]) }.path(program);
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let host = |l: Listed| if let Key::Vote { host, .. } = l.key { Some(host) } else { None };
            Ok(self.list(folder, None, usize::MAX).await?.into_iter().filter_map(host).collect())
        };
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let harm = hosts(true).await?;
        let votes = Votes { good: 0, harm: number(harm.len()) };
        // Votes for it matter only beside votes against it.
        if votes.verdict() == Verdict::Fine {
            return Ok(votes);
        }
        Ok(Votes { good: number(hosts(false).await?.difference(&harm).count()), ..votes })
    }

    /// Lists the programs in the store.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn programs(&self) -> Result<Vec<Program>, Error> {
        let mut out = Vec::new();
        for build in self.folders(&self.at("v1")).await? {
            if build.filename().and_then(Build::parse).is_none() {
                continue;
            }
            for class in self.folders(&build).await? {
                let path =
                    format!("v1/{}/{}/head", build.filename().unwrap_or(""), class.filename().unwrap_or(""));
                out.extend(Key::parse(&path).and_then(|(program, _)| program));
            }
        }
        Ok(out)
    }

    /// Returns the hosts that have a folder below this one: as many as there are hosts, however many objects they have
    /// written.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn hosts(&self, folder: &str) -> Result<Vec<HostId>, Error> {
        let folders = self.folders(&self.at(folder)).await?;
        Ok(folders.iter().filter_map(|f| f.filename()?.parse().ok()).collect())
    }

    async fn folders(&self, at: &Path) -> Result<Vec<Path>, Error> {
        match patiently(self.store.list_with_delimiter(Some(at))).await {
            Ok(list) => Ok(list.common_prefixes),
            Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
            Err(e) => Err(trouble(&format!("list {at}"), &e)),
        }
    }

    fn listed(&self, meta: &ObjectMeta) -> Option<Listed> {
        let path: Vec<String> =
            meta.location.prefix_match(&self.prefix)?.map(|p| p.as_ref().to_owned()).collect();
        let (program, key) = Key::parse(&path.join("/"))?;
        Some(Listed { program, key, stored: seconds(meta) })
    }
}

fn url(address: &str) -> Result<url::Url, url::ParseError> {
    url::Url::parse(address)
}

fn seconds(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp()).unwrap_or(0)
}

async fn patiently<T>(
    request: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, object_store::Error> {
    let late = |source| object_store::Error::Generic { store: "store", source };
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(result) => result,
        Err(e) => Err(late(Box::new(std::io::Error::new(ErrorKind::TimedOut, e)))),
    }
}

/// Returns the error for a failed request.
fn trouble(what: &str, e: &object_store::Error) -> Error {
    let mut io = None;
    let mut cause = e.source();
    let mut why = e.to_string();
    while let Some(error) = cause {
        io = io.or(error.downcast_ref::<std::io::Error>().map(std::io::Error::kind));
        let text = error.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        cause = error.source();
    }
    let kind = match (e, io) {
        (object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }, _)
        | (_, Some(ErrorKind::PermissionDenied)) => Trouble::Denied,
        (_, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded)) => Trouble::Full,
        (_, Some(ErrorKind::ReadOnlyFilesystem)) => Trouble::ReadOnly,
        (object_store::Error::Generic { .. } | object_store::Error::JoinError { .. }, _) => {
            Trouble::Unreachable
        }
        _ => Trouble::Wrong,
    };
    Error::Store { what: what.to_owned(), kind, why }
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
