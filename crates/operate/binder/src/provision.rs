//! Nodes for a whole gang, asked of cluster-autoscaler by a ProvisioningRequest: it adds nodes for all pods of the gang or none.
//!
//! The request belongs to the gang's first pod, so it goes with the gang whoever is there to see it. The pods name the request, so that the
//! autoscaler does not count them twice.

use bedplate_kubernetes::k8s_openapi::api::core::v1::{Pod, PodTemplate};
use bedplate_kubernetes::kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams,
};
use bedplate_kubernetes::kube::core::GroupVersionKind;
use bedplate_kubernetes::kube::{self, Api, Client};
use futures_util::StreamExt;
use futures_util::stream::iter;
use serde_json::{Value, json};

const GROUP: &str = "autoscaling.x-k8s.io";
const CONSUMES: &str = "autoscaling.x-k8s.io/consume-provisioning-request";
const OF_CLASS: &str = "autoscaling.x-k8s.io/provisioning-class-name";
/// Conditions after which a request gives nothing any more.
const SPENT: [&str; 3] = ["Failed", "BookingExpired", "CapacityRevoked"];
/// What the autoscaler and others write into pods, and a template must not have.
const OF_ONE_POD: [&str; 4] = ["nodeName", "hostname", "schedulingGates", "ephemeralContainers"];

/// Pods that are noted at once.
const AT_ONCE: usize = 16;

/// Requests of one class in one namespace.
pub(crate) struct Provisioning {
    class: String,
    pods: Api<Pod>,
    templates: Api<PodTemplate>,
    requests: Api<DynamicObject>,
}

impl Provisioning {
    pub(crate) fn new(client: Client, class: &str, namespace: &str) -> Self {
        let kind = GroupVersionKind::gvk(GROUP, "v1", "ProvisioningRequest");
        let resource = ApiResource::from_gvk_with_plural(&kind, "provisioningrequests");
        Self {
            class: class.to_owned(),
            pods: Api::namespaced(client.clone(), namespace),
            templates: Api::namespaced(client.clone(), namespace),
            requests: Api::namespaced_with(client, namespace, &resource),
        }
    }

    /// Asks for nodes for all pods of a gang; the names of equal pods are together.
    pub(crate) async fn ask(&self, gang: &str, kinds: &[Vec<String>]) -> kube::Result<()> {
        let name = name_of(gang);
        let known = self.requests.get_opt(&name).await?;
        if known.as_ref().is_some_and(|known| is_spent(&known.data)) {
            self.ask_no_more(gang).await?;
        }
        if known.is_none_or(|known| is_spent(&known.data)) && !self.make(&name, kinds).await? {
            return Ok(());
        }
        // Every time, for a pod that has no note is counted on its own.
        let notes = json!({"metadata": {"annotations": {CONSUMES: name, OF_CLASS: self.class}}});
        let note = async |pod: &String| {
            // A pod that is gone needs no note.
            unless_gone(self.pods.patch(pod, &PatchParams::default(), &Patch::Merge(&notes)).await)
        };
        let mut noted = iter(kinds.iter().flatten().map(note)).buffer_unordered(AT_ONCE);
        let mut outcome = Ok(());
        while let Some(one) = noted.next().await {
            outcome = outcome.and(one);
        }
        outcome
    }

    /// Makes the request and its templates; not where somebody else has asked for these pods already, as Kueue does.
    async fn make(&self, name: &str, kinds: &[Vec<String>]) -> kube::Result<bool> {
        let mut sets = Vec::new();
        let mut owner = Value::Null;
        for (index, names) in kinds.iter().enumerate() {
            let Some(first) = names.first() else { continue };
            let Some(pod) = self.pods.get_opt(first).await? else { return Ok(false) };
            let noted = pod.metadata.annotations.as_ref().and_then(|all| all.get(CONSUMES));
            if noted.is_some_and(|noted| noted != name) {
                return Ok(false);
            }
            if owner.is_null() {
                owner = owned_by(&pod);
            }
            let template = format!("{name}-{index}");
            self.write_template(&template, &pod, &owner).await?;
            sets.push(json!({"count": names.len(), "podTemplateRef": {"name": template}}));
        }
        let request = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "ProvisioningRequest",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"provisioningClassName": self.class, "podSets": sets},
        });
        let request: DynamicObject = serde_json::from_value(request).map_err(kube::Error::SerdeError)?;
        unless_there(self.requests.create(&PostParams::default(), &request).await)?;
        Ok(true)
    }

    async fn write_template(&self, name: &str, pod: &Pod, owner: &Value) -> kube::Result<()> {
        let template = json!({
            "apiVersion": "v1", "kind": "PodTemplate",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "template": {"metadata": {"labels": pod.metadata.labels}, "spec": template_of(pod)},
        });
        let template: PodTemplate = serde_json::from_value(template).map_err(kube::Error::SerdeError)?;
        unless_there(self.templates.create(&PostParams::default(), &template).await)
    }

    pub(crate) async fn ask_no_more(&self, gang: &str) -> kube::Result<()> {
        let name = name_of(gang);
        let how = DeleteParams::default();
        let Some(known) = self.requests.get_opt(&name).await? else { return Ok(()) };
        unless_gone(self.requests.delete(&name, &how).await)?;
        let sets = known.data["spec"]["podSets"].as_array().map_or(0, Vec::len);
        for index in 0..sets {
            unless_gone(self.templates.delete(&format!("{name}-{index}"), &how).await)?;
        }
        Ok(())
    }
}

/// The same for the same gang, whoever asks.
fn name_of(gang: &str) -> String {
    let number = gang.bytes().fold(0, |number, byte| bedplate_random::mix(number ^ u64::from(byte)));
    format!("bedplate-{number:016x}")
}

fn owned_by(pod: &Pod) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid})
}

/// What a pod asks for, without what makes it this pod.
fn template_of(pod: &Pod) -> Value {
    let mut spec = json!(pod.spec);
    let is_token = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    if let Some(fields) = spec.as_object_mut() {
        OF_ONE_POD.iter().for_each(|field| drop(fields.remove(*field)));
        if let Some(volumes) = fields.get_mut("volumes").and_then(Value::as_array_mut) {
            volumes.retain(|volume| !is_token(&volume["name"]));
        }
        for list in ["containers", "initContainers"] {
            let containers = fields.get_mut(list).and_then(Value::as_array_mut);
            for mounts in
                containers.into_iter().flatten().filter_map(|each| each["volumeMounts"].as_array_mut())
            {
                mounts.retain(|mount| !is_token(&mount["name"]));
            }
        }
    }
    spec
}

fn is_spent(request: &Value) -> bool {
    let conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_true = |kind: &str| conditions.iter().any(|each| each["type"] == kind && each["status"] == "True");
    SPENT.iter().any(|kind| is_true(kind))
}

fn unless_there<T>(made: kube::Result<T>) -> kube::Result<()> {
    match made {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        made => made.map(drop),
    }
}

fn unless_gone<T>(done: kube::Result<T>) -> kube::Result<()> {
    match done {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_nothing_of_one_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a-0", "uid": "u1"},
            "spec": {
                "nodeName": "n1", "hostname": "a-0", "schedulerName": "bedplate",
                "volumes": [{"name": "kube-api-access-x2x"}, {"name": "data"}],
                "containers": [{"name": "main", "volumeMounts": [
                    {"name": "kube-api-access-x2x", "mountPath": "/var/run"}, {"name": "data", "mountPath": "/data"},
                ]}],
            },
        }))
        .expect("a pod");
        assert_eq!(
            template_of(&pod),
            json!({
                "schedulerName": "bedplate", "volumes": [{"name": "data"}],
                "containers": [{"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            })
        );
    }

    #[test]
    fn a_request_that_failed_is_spent() {
        let with =
            |kind: &str, status: &str| json!({"status": {"conditions": [{"type": kind, "status": status}]}});
        assert!(is_spent(&with("Failed", "True")) && is_spent(&with("BookingExpired", "True")));
        assert!(
            !is_spent(&with("Failed", "False"))
                && !is_spent(&with("Provisioned", "True"))
                && !is_spent(&json!({}))
        );
    }
}
