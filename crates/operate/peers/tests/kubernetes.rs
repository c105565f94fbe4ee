//! The control plane that other tests build on: pods run and end, the API server comes back, accounts are held to their rules.

use bedplate_peers::{Kubernetes, KubernetesShape};
use bedplate_testkit::wait_until;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: short, annotations: {kubeci/run-for: 1s}}
spec:
  containers: [{name: it, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: nobody, namespace: default}
";

#[test]
fn pods_run_and_end_and_the_server_comes_back() {
    let shape = KubernetesShape { nodes: 2, ..KubernetesShape::default() };
    if let Some(missing) = shape.missing() {
        return println!("SKIPPED: a real Kubernetes: {missing}");
    }
    let kubernetes = Kubernetes::start(&shape).expect("it starts");
    assert_eq!(kubernetes.kubectl(&["get", "nodes", "-o", "name"]).lines().count(), 2);
    kubernetes.apply(POD);
    let phase = || kubernetes.try_kubectl(&["get", "pod", "short", "-o", "jsonpath={.status.phase}"]);
    wait_until("the pod ends", || phase().as_deref() == Ok("Succeeded"));

    let nobody = kubernetes.kubeconfig_of("default", "nobody").display().to_string();
    let denied = kubernetes.try_kubectl(&["--kubeconfig", &nobody, "get", "nodes"]).unwrap_err();
    assert!(denied.contains("Forbidden"), "{denied}");

    kubernetes.stop_server().expect("it stops");
    assert!(phase().is_err());
    kubernetes.start_server().expect("it starts again");
    assert_eq!(phase().as_deref(), Ok("Succeeded"), "what was known is known");
}
