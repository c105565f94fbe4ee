//! A prefix of a bucket with checkpoints. Every attempt has keys of its own, and a checkpoint exists once its manifest does.
//!
//! Below `step-00000120/` lie a folder per attempt and `manifest.json`, which names files of one of them. Nothing is renamed and nothing depends on
//! conditional requests, which some servers ignore. Taking a checkpoint out of the list gives its manifest another name.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Attempt, LONGEST_TEXT, MANIFEST_FILE, PartFile, Storage};
use crate::buffer::Buffer;
use crate::chunks::ChunkSizes;

/// The suffix of a checkpoint's name while it takes the place of others.
pub(crate) const TAKEN_OVER: &str = ".taken-over";
/// Parts of an object must be this large, except for the last.
const LEAST_CHUNK: u64 = 5 << 20;
const CONNECT: Duration = Duration::from_secs(10);
const REQUEST: Duration = Duration::from_secs(120);
const RETRIES: usize = 4;
/// Longer than a request may take, so that one which stalled is made again.
const RETRY_FOR: Duration = Duration::from_secs(300);

#[derive(Debug, Clone)]
pub(super) struct Bucket {
    store: Arc<AmazonS3>,
    prefix: String,
    runtime: Arc<Runtime>,
}

impl Bucket {
    pub(super) fn open(bucket: &str, prefix: &str) -> io::Result<Self> {
        // Whichever provider was installed first serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let named = |name: &str| std::env::var(name).ok();
        let endpoint = named("AWS_ENDPOINT_URL_S3").or_else(|| named("AWS_ENDPOINT_URL"));
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let client = ClientOptions::new()
            .with_connect_timeout(CONNECT)
            .with_timeout(REQUEST)
            .with_allow_http(is_plain || named("AWS_ALLOW_HTTP").is_some_and(|value| value == "true"));
        let retry =
            RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_FOR, backoff: BackoffConfig::default() };
        let builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(client)
            .with_retry(retry);
        let builder = match endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint),
            None => builder,
        };
        let store = Arc::new(builder.build().map_err(plain)?);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { store, prefix: prefix.to_owned(), runtime: Arc::new(runtime) })
    }

    fn key(&self, path: &str) -> Key {
        let parts = [self.prefix.as_str(), path];
        Key::from(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"))
    }

    fn wait<T>(&self, request: impl Future<Output = object_store::Result<T>>) -> io::Result<T> {
        self.runtime.block_on(request).map_err(plain)
    }

    /// Keys and folders right below a path, relative to it.
    fn list(&self, path: &str) -> io::Result<(Vec<String>, Vec<String>)> {
        let prefix = self.key(path);
        let found = self.wait(self.store.list_with_delimiter(Some(&prefix)))?;
        let last = |key: &Key| key.filename().unwrap_or_default().to_owned();
        let keys = found.objects.iter().map(|object| last(&object.location)).collect();
        Ok((keys, found.common_prefixes.iter().map(last).collect()))
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        match self.wait(self.store.delete(&self.key(path))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    fn exists_at(&self, path: &str) -> io::Result<bool> {
        match self.wait(self.store.head(&self.key(path))) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn give_manifest_name(&self, from: &str, to: &str) -> io::Result<()> {
        let bytes = self.read_text(from)?;
        self.wait(self.store.put(&self.key(to), PutPayload::from(bytes)))?;
        self.delete(from)
    }

    /// Removes the files below a checkpoint's folder that no manifest there names.
    fn remove_unnamed(&self, folder: &str) -> io::Result<()> {
        let (manifests, attempts) = self.list(folder)?;
        let mut named = Vec::new();
        for manifest in manifests.iter().filter(|name| name.ends_with(".json")) {
            named.extend(files_of(&self.read_text(&format!("{folder}/{manifest}"))?));
        }
        for attempt in attempts {
            for file in self.list(&format!("{folder}/{attempt}"))?.0 {
                let file = format!("{attempt}/{file}");
                if !named.contains(&file) {
                    self.delete(&format!("{folder}/{file}"))?;
                }
            }
        }
        Ok(())
    }
}

fn files_of(manifest: &[u8]) -> Vec<String> {
    let value: Value = serde_json::from_slice(manifest).unwrap_or_default();
    let files = value["files"].as_array().into_iter().flatten();
    files.filter_map(|file| Some(file["file"].as_str()?.to_owned())).collect()
}

/// The folder of a checkpoint and the key of its manifest.
fn manifest_of(name: &str) -> (String, String) {
    let (folder, file) = match name.strip_suffix(TAKEN_OVER) {
        Some(folder) => (folder, "taken-over.json"),
        None => (name, MANIFEST_FILE),
    };
    let key = if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
    (folder.to_owned(), key)
}

/// An error in one line: what the server says, or the innermost cause.
fn plain(error: object_store::Error) -> io::Error {
    use object_store::Error::*;
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let kind = match &error {
        NotFound { .. } => io::ErrorKind::NotFound,
        PermissionDenied { .. } | Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        // Requests other than for an object have no errors of their own for these.
        _ if text.contains("403 Forbidden") => io::ErrorKind::PermissionDenied,
        _ if text.contains("<Code>NoSuchBucket</Code>") => io::ErrorKind::NotADirectory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("the object store: {}", said(&text).unwrap_or(&text)))
}

/// The message in a server's answer.
fn said(answer: &str) -> Option<&str> {
    let (_, rest) = answer.split_once("<Message>")?;
    Some(rest.split_once("</Message>")?.0)
}

impl Storage for Bucket {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for folder in self.list("")?.1 {
            if self.exists_at(&format!("{folder}/{MANIFEST_FILE}"))? {
                names.push(folder);
            }
        }
        names.sort();
        Ok(names)
    }

    fn read_text(&self, path: &str) -> io::Result<Vec<u8>> {
        let key = self.key(path);
        if self.wait(self.store.head(&key))?.size > LONGEST_TEXT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bytes = self.wait(async { self.store.get(&key).await?.bytes().await })?;
        Ok(bytes.to_vec())
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(self.wait(self.store.head(&self.key(path)))?.size)
    }

    fn read(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let range = offset..offset + into.len() as u64;
        let bytes = self.wait(self.store.get_range(&self.key(path), range))?;
        if bytes.len() != into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into.copy_from_slice(&bytes);
        Ok(())
    }

    fn clear(&self) -> io::Result<()> {
        for folder in self.list("")?.1.iter().filter(|name| name.starts_with("step-")) {
            self.remove_unnamed(folder)?;
        }
        Ok(())
    }

    fn make_room(&self, _attempt: &Attempt) -> io::Result<()> {
        Ok(())
    }

    fn part(&self, attempt: &Attempt, file: &str, sizes: ChunkSizes) -> io::Result<Box<dyn PartFile>> {
        let key = self.key(&format!("{}/{}", attempt.name(), self.path_in_checkpoint(attempt, file)));
        let upload = match sizes.chunks() {
            ..=1 => None,
            _ => Some(self.wait(self.store.create_multipart(&key))?),
        };
        let pieces = Mutex::new(vec![None; sizes.chunks() as usize]);
        Ok(Box::new(Part { bucket: self.clone(), key, upload, pieces, bytes: AtomicU64::new(0) }))
    }

    fn path_in_checkpoint(&self, attempt: &Attempt, file: &str) -> String {
        format!("{}/{file}", attempt.id)
    }

    fn publish(&self, _attempt: &Attempt, name: &str, manifest: &[u8]) -> io::Result<()> {
        let path = manifest_of(name).1;
        let put = self.wait(self.store.put(&self.key(&path), PutPayload::from(manifest.to_vec())));
        // What counts is what is there: an answer may be lost, and a body may arrive in part.
        match (self.read_text(&path), put) {
            (Ok(found), _) if found == manifest => Ok(()),
            (Ok(found), _) => {
                let _ = self.delete(&path);
                Err(in_part("manifest", found.len() as u64, manifest.len() as u64))
            }
            (Err(error), put) => Err(put.err().unwrap_or(error)),
        }
    }

    fn discard(&self, attempt: &Attempt) {
        let folder = format!("{}/{}", attempt.name(), attempt.id);
        for file in self.list(&folder).unwrap_or_default().0 {
            let _ = self.delete(&format!("{folder}/{file}"));
        }
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.exists_at(&manifest_of(name).1)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.give_manifest_name(&manifest_of(from).1, &manifest_of(to).1)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (folder, manifest) = manifest_of(name);
        let files = files_of(&self.read_text(&manifest)?);
        self.delete(&manifest)?;
        files.iter().try_for_each(|file| self.delete(&format!("{folder}/{file}")))
    }

    fn set_aside(&self, name: &str, aside: &Path) -> io::Result<()> {
        let (folder, manifest) = manifest_of(name);
        let label = aside.file_name().unwrap_or_default().to_string_lossy();
        self.give_manifest_name(&manifest, &format!("{folder}/abandoned-{label}.json"))
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn least_chunk(&self) -> u64 {
        LEAST_CHUNK
    }
}

#[derive(Debug)]
struct Part {
    bucket: Bucket,
    key: Key,
    /// Of an object with several parts.
    upload: Option<String>,
    pieces: Mutex<Vec<Option<PartId>>>,
    /// Sent so far.
    bytes: AtomicU64,
}

impl Part {
    /// Some way to the store may have passed on less than it was given.
    fn expect_whole(&self) -> io::Result<()> {
        let sent = self.bytes.load(Ordering::Relaxed);
        if sent == 0 {
            // A rank without a share of the state sends nothing.
            return Ok(());
        }
        match self.bucket.wait(self.bucket.store.head(&self.key))?.size {
            found if found == sent => Ok(()),
            found => Err(in_part("part", found, sent)),
        }
    }
}

fn in_part(what: &str, found: u64, sent: u64) -> io::Error {
    io::Error::other(format!("the object store: it has {found} bytes of the {what} instead of {sent}"))
}

impl PartFile for Part {
    fn put(&self, index: u64, bytes: usize, buffer: &mut Buffer) -> io::Result<()> {
        let payload = PutPayload::from(buffer.bytes(bytes).to_vec());
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let Some(upload) = &self.upload else {
            self.bucket.wait(self.bucket.store.put(&self.key, payload))?;
            return Ok(());
        };
        let request = self.bucket.store.put_part(&self.key, upload, index as usize, payload);
        let piece = self.bucket.wait(request)?;
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)[index as usize] = Some(piece);
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        let Some(upload) = &self.upload else { return self.expect_whole() };
        let pieces = std::mem::take(&mut *self.pieces.lock().unwrap_or_else(PoisonError::into_inner));
        let missing = || io::Error::other("a chunk was not uploaded");
        let pieces = pieces.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        self.bucket.wait(self.bucket.store.complete_multipart(&self.key, upload, pieces))?;
        self.expect_whole()
    }

    fn abandon(&self) {
        let _ = match &self.upload {
            Some(upload) => self.bucket.wait(self.bucket.store.abort_multipart(&self.key, upload)),
            None => self.bucket.wait(self.bucket.store.delete(&self.key)),
        };
    }
}
