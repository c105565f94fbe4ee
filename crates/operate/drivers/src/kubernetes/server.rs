//! Questions to the API server, with objects as plain values: what is read of them differs by kind and version.

use bedplate_kubernetes::ApiConnection;
use bedplate_kubernetes::kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy,
};
use bedplate_kubernetes::kube::core::Request;
use bedplate_kubernetes::kube::core::request::Error as RequestError;
use bedplate_kubernetes::{KubernetesError, KubernetesPlace};
use serde_json::Value;

use crate::DriverError;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    JobSets,
    Jobs,
    Pods,
    Services,
    Nodes,
    Events,
}

impl Kind {
    fn path(self, namespace: &str) -> String {
        let (group, name) = match self {
            Kind::Nodes => return "/api/v1/nodes".to_owned(),
            Kind::JobSets => ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
            Kind::Jobs => ("/apis/batch/v1", "jobs"),
            Kind::Pods => ("/api/v1", "pods"),
            Kind::Services => ("/api/v1", "services"),
            Kind::Events => ("/api/v1", "events"),
        };
        format!("{group}/namespaces/{namespace}/{name}")
    }
}

pub(super) struct Server {
    pub(super) connection: ApiConnection,
}

impl Server {
    pub(super) fn open(place: &KubernetesPlace) -> Result<Self, DriverError> {
        Ok(Self { connection: ApiConnection::open(place)? })
    }

    pub(super) fn requests(kind: Kind, namespace: &str) -> Request {
        Request::new(kind.path(namespace))
    }

    /// An object; nothing where there is none.
    pub(super) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>, DriverError> {
        self.get_at(&kind.path(namespace), name)
    }

    pub(super) fn get_at(&self, path: &str, name: &str) -> Result<Option<Value>, DriverError> {
        let request = Request::new(path).get(name, &GetParams::default());
        match self.ask(request) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The objects of a kind that have these labels.
    pub(super) fn list(&self, kind: Kind, namespace: &str, labels: &str) -> Result<Vec<Value>, DriverError> {
        self.list_at(&kind.path(namespace), &ListParams::default().labels(labels))
    }

    pub(super) fn list_at(&self, path: &str, query: &ListParams) -> Result<Vec<Value>, DriverError> {
        let mut list = self.ask(Request::new(path).list(query))?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Makes an object. `None`: there is one of that name already.
    pub(super) fn create(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
        dry_run: bool,
    ) -> Result<Option<Value>, DriverError> {
        let parameters = PostParams { dry_run, ..PostParams::default() };
        let request = Self::requests(kind, namespace).create(&parameters, object.to_string().into_bytes());
        match self.ask(request) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes what the patch names and leaves the rest.
    pub(super) fn patch(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Value, DriverError> {
        self.patch_at(&kind.path(namespace), name, patch)
    }

    pub(super) fn patch_at(&self, path: &str, name: &str, patch: &Value) -> Result<Value, DriverError> {
        let request = Request::new(path).patch(name, &PatchParams::default(), &Patch::Merge(patch));
        Ok(self.ask(request)?)
    }

    /// Removes an object and, in the background, what belongs to it.
    pub(super) fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<(), DriverError> {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        match self.ask(Self::requests(kind, namespace).delete(name, &parameters)) {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The answer under a path; nothing where the server has no such path.
    pub(super) fn find(&self, group: &str) -> Result<Option<Value>, DriverError> {
        let (path, name) = group.rsplit_once('/').unwrap_or(("", group));
        self.get_at(path, name)
    }

    /// Who we are to the server.
    pub(super) fn user(&self) -> Result<String, DriverError> {
        let review =
            serde_json::json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let request = Request::new(path).create(&PostParams::default(), review.to_string().into_bytes());
        let answer = self.ask(request)?;
        Ok(answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned())
    }

    fn ask(&self, request: Result<http::Request<Vec<u8>>, RequestError>) -> Result<Value, KubernetesError> {
        let request = self.checked(request)?;
        let client = self.connection.client();
        self.connection.ask(async move { client.request::<Value>(request).await })
    }

    /// A request with a name that no object can have is refused before it is sent.
    pub(super) fn checked(
        &self,
        request: Result<http::Request<Vec<u8>>, RequestError>,
    ) -> Result<http::Request<Vec<u8>>, KubernetesError> {
        let server = self.connection.server();
        request.map_err(|error| KubernetesError::Unreachable {
            server: server.to_owned(),
            why: error.to_string(),
        })
    }
}
