//! What a cluster needs to run the scheduler: a namespace, an account with the verbs that are used and no others, a Deployment.

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOptions {
    pub namespace: String,
    /// The `schedulerName` of its pods.
    pub name: String,
    pub image: String,
    pub replicas: u32,
}

/// The objects in the order in which they must be made.
pub fn manifests(options: &ManifestOptions) -> Vec<Value> {
    let account = account_of(options);
    vec![
        namespace(options),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": options.namespace}}),
        cluster_role(&account),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": options.namespace}],
        }),
        lease_role(options, &account),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": account, "namespace": options.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": options.namespace}],
        }),
        deployment(options, &account),
    ]
}

fn account_of(options: &ManifestOptions) -> String {
    format!("{}-scheduler", options.name)
}

/// A namespace that admits only pods without privileges.
fn namespace(options: &ManifestOptions) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": options.namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    })
}

fn cluster_role(account: &str) -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": account},
        "rules": [
            rule("", &["nodes"], &["get", "list", "watch", "patch"]),
            rule("", &["pods"], &["list", "watch", "delete"]),
            rule("", &["pods/binding"], &["create"]),
            rule("", &["pods/status"], &["patch"]),
            rule("", &["events"], &["create"]),
            rule("", &["persistentvolumeclaims", "persistentvolumes"], &["get"]),
            rule("batch", &["jobs"], &["get"]),
            rule("jobset.x-k8s.io", &["jobsets"], &["get"]),
        ],
    })
}

fn lease_role(options: &ManifestOptions, account: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": account, "namespace": options.namespace},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [account], "verbs": ["get", "update"]},
        ],
    })
}

fn deployment(options: &ManifestOptions, account: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": account});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": account, "namespace": options.namespace, "labels": labels},
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": account,
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [{
                        "name": "scheduler",
                        "image": options.image,
                        "args": ["scheduler", "--name", options.name, "--namespace", options.namespace],
                        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    })
}
