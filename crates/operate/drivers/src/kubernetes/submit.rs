//! Handing a job to the server, once: its object is named by the key, so that a second one cannot be made.

use std::collections::BTreeMap;

use bedplate_document::kubernetes::object_name;
use bedplate_host::clock;
use bedplate_job::Job;
use bedplate_job::kubernetes::{ManifestKind, Manifests, RenderOptions, render};
use bedplate_kubernetes::names;
use serde_json::{Value, json};

use super::Kubernetes;
use super::record::{annotation, text};
use super::server::Kind;
use crate::{DriverError, JobId, Submitted};

/// What people recognise of a job's name in that of its object.
const LONGEST_BEGINNING: usize = 24;
/// Cancelled jobs are remembered for as long as the server remembers ended ones.
const REMEMBERED_MS: u64 = 7 * 86_400_000;

impl Kubernetes {
    pub(super) fn submit_with_key(&self, job: &Job, key: &str) -> Result<Submitted, DriverError> {
        let (namespace, manifests) = self.manifests(job, key)?;
        let remarks = manifests.remarks.iter().map(|remark| Value::from(remark.to_string())).collect();
        let name =
            manifests.objects.last().map(|object| text(&object["metadata"]["name"])).unwrap_or_default();
        let is_old = !self.make(&namespace, &manifests, false)?;
        self.forget_cancelled(&namespace);
        let id = JobId(format!("{namespace}/{name}"));
        Ok(Submitted { label: id.0.clone(), count: 1, is_old, remarks, jobs: vec![id.clone()], id })
    }

    /// Lets the server check a job as if it were submitted.
    pub fn check(&self, job: &Job) -> Result<(), DriverError> {
        let (namespace, manifests) = self.manifests(job, "check")?;
        self.make(&namespace, &manifests, true).map(drop)
    }

    fn manifests(&self, job: &Job, key: &str) -> Result<(String, Manifests), DriverError> {
        let user = self.user()?;
        let namespace = job.kubernetes.namespace.clone().unwrap_or_else(|| self.namespace().to_owned());
        let beginning = object_name(&job.name, LONGEST_BEGINNING);
        let options = RenderOptions {
            kind: self.manifest_kind()?,
            name: Some(format!("{beginning}-{}", short_hash(&format!("{user}\n{key}")))),
            namespace: Some(namespace.clone()),
            image: self.site.image.clone(),
            scheduler: self.site.scheduler.clone(),
            annotations: BTreeMap::from([
                (names::KEY.to_owned(), key.to_owned()),
                (names::USER.to_owned(), user.to_owned()),
                (names::SUBMITTED.to_owned(), clock::unix_ms().to_string()),
            ]),
            ..RenderOptions::default()
        };
        Ok((namespace, render(job, &options)?))
    }

    /// Makes the objects of a job; `false` where they were there before.
    fn make(&self, namespace: &str, manifests: &Manifests, dry_run: bool) -> Result<bool, DriverError> {
        let Some((job, others)) = manifests.objects.split_last() else { return Ok(false) };
        let kind = match self.manifest_kind()? {
            ManifestKind::JobSet => Kind::JobSets,
            _ => Kind::Jobs,
        };
        let made = self.server.create(kind, namespace, job, dry_run)?;
        let is_new = made.is_some();
        let owner = match made {
            Some(owner) => Some(owner),
            None => self.server.get(kind, namespace, text(&job["metadata"]["name"]))?,
        };
        if owner.as_ref().is_some_and(|owner| annotation(owner, names::KEY) != annotation(job, names::KEY)) {
            let name = text(&job["metadata"]["name"]);
            return Err(DriverError::Refused {
                code: "kubernetes/refused".into(),
                message: format!("{namespace} has another object called {name}"),
                help: Some("give the job another name, or submit it with another key".into()),
                reason: None,
            });
        }
        // The service goes with its Job. It is made after it, and again where an earlier submission broke off between the two.
        for service in others {
            let mut service = service.clone();
            if let Some(owner) = owner.as_ref().filter(|_| !dry_run) {
                let metadata = &owner["metadata"];
                service["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"],
                }]);
            }
            self.server.create(Kind::Services, namespace, &service, dry_run)?;
        }
        Ok(is_new)
    }

    /// The server removes jobs that ended; cancelled ones are suspended to it and would stay for ever. A failure here is
    /// made up for by the next submission.
    fn forget_cancelled(&self, namespace: &str) {
        let Ok(kind) = self.manifest_kind() else { return };
        let kind = if kind == ManifestKind::JobSet { Kind::JobSets } else { Kind::Jobs };
        let ours = format!("{}={}", names::MANAGED_BY, names::SCHEDULER);
        let Ok(objects) = self.server.list(kind, namespace, &ours) else { return };
        let before = clock::unix_ms().saturating_sub(REMEMBERED_MS);
        let is_old = |object: &&Value| {
            let cancelled = annotation(object, names::CANCELLED).and_then(|text| text.parse::<u64>().ok());
            cancelled.is_some_and(|cancelled| cancelled < before)
        };
        for object in objects.iter().filter(is_old) {
            if let Err(error) = self.server.delete(kind, namespace, text(&object["metadata"]["name"])) {
                self.remark(format!("jobs that were cancelled a week ago could not be removed: {error}"));
                return;
            }
        }
    }
}

/// Ten letters and digits; two keys of one user do not meet in practice, and where they do the key in the annotation tells them apart.
fn short_hash(text: &str) -> String {
    // FNV-1a.
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{:010x}", (hash ^ (hash >> 40)) & 0xff_ffff_ffff)
}
