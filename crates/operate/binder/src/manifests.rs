//! What a cluster needs to run the scheduler: a namespace, an account with the verbs that are used and no others, a Deployment, and
//! the order to the API server to ask it before others bind.

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOptions {
    pub namespace: String,
    /// The `schedulerName` of its pods.
    pub name: String,
    pub image: String,
    pub replicas: u32,
    /// Of ProvisioningRequests, where gangs that lack room shall make them.
    pub provisioning_class: Option<String>,
    /// Whether autoscalers learn from it how many requests replicas have under way. A cluster has one such source.
    pub tells_load: bool,
}

/// The webhook by which the API server asks.
pub(crate) const HOOK: &str = "bindings.bedplate.dev";
const PORT: u16 = 8443;
/// The source of external metrics.
pub(crate) const METRICS_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// The objects in the order in which they must be made.
pub fn manifests(options: &ManifestOptions) -> Vec<Value> {
    let account = account_of(options);
    let mut objects = vec![
        namespace(options),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": options.namespace}}),
        cluster_role(options, &account),
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
        service(options, &account),
        hook(options, &account),
    ];
    objects.extend(options.tells_load.then(|| metrics_service(options, &account)));
    objects
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

fn cluster_role(options: &ManifestOptions, account: &str) -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut role = json!({
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
            {
                "apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"],
                "resourceNames": [account], "verbs": ["get", "patch"],
            },
        ],
    });
    if let (Some(_), Some(rules)) = (&options.provisioning_class, role["rules"].as_array_mut()) {
        rules.extend([
            rule("", &["pods"], &["get", "patch"]),
            rule("", &["podtemplates"], &["create", "delete"]),
            rule("autoscaling.x-k8s.io", &["provisioningrequests"], &["get", "create", "delete"]),
        ]);
    }
    if let (true, Some(rules)) = (options.tells_load, role["rules"].as_array_mut()) {
        rules.push(json!({
            "apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"],
            "resourceNames": [METRICS_SERVICE], "verbs": ["get", "patch"],
        }));
    }
    role
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
    let listen = format!("0.0.0.0:{PORT}");
    let mut arguments =
        vec!["scheduler", "--name", &options.name, "--namespace", &options.namespace, "--listen", &listen];
    if let Some(class) = &options.provisioning_class {
        arguments.extend(["--provisioning-class", class]);
    }
    arguments.extend(options.tells_load.then_some("--external-metrics"));
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": account, "namespace": options.namespace, "labels": labels},
        "spec": {
            "replicas": options.replicas,
            // Those that wait for the Lease are not ready: a rollout that waits for them would wait for ever.
            "strategy": {"rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 1}},
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
                        "args": arguments,
                        "ports": [{"name": "https", "containerPort": PORT}],
                        // The Service leads to the holder of the Lease.
                        "readinessProbe": {"httpGet": {"scheme": "HTTPS", "path": "/ready", "port": PORT}, "periodSeconds": 2},
                        "livenessProbe": {"httpGet": {"scheme": "HTTPS", "path": "/healthz", "port": PORT}, "failureThreshold": 6},
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

fn service(options: &ManifestOptions, account: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": account, "namespace": options.namespace},
        "spec": {
            "selector": {"app.kubernetes.io/name": account},
            "ports": [{"name": "https", "port": 443, "targetPort": PORT}],
        },
    })
}

/// The API server asks before it binds pods of others; where nobody answers, it binds them unasked. Our own account need not ask.
fn hook(options: &ManifestOptions, account: &str) -> Value {
    let ours = format!("system:serviceaccount:{}:{account}", options.namespace);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": account},
        "webhooks": [{
            "name": HOOK,
            "clientConfig": {"service": {"name": account, "namespace": options.namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding", "bindings"], "operations": ["CREATE"], "scope": "Namespaced"}],
            "matchConditions": [{"name": "others", "expression": format!("request.userInfo.username != '{ours}'")}],
            "failurePolicy": "Ignore",
            "timeoutSeconds": 5,
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }],
    })
}

fn metrics_service(options: &ManifestOptions, account: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": METRICS_SERVICE},
        "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1",
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"name": account, "namespace": options.namespace, "port": 443},
        },
    })
}
