//! The pools of a plan as objects of Kubernetes: a Deployment where a replica fits on a node, a LeaderWorkerSet where it
//! spans several, a Service in front, and an autoscaler that goes from the plan's replicas to what there is.
//!
//! Dynamo has a kind of its own, DynamoGraphDeployment, whose operator makes the rest.

use bedplate_document::quote;

use super::{Duty, Pool, Software};

/// How the objects are named and what they run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment<'a> {
    /// Of the objects; a label as DNS has them.
    pub name: &'a str,
    pub image: Option<&'a str>,
    pub software: Software,
    /// The resource that counts as a GPU.
    pub resource: &'a str,
    /// GPUs that there are for all pools.
    pub gpus: u32,
}

impl Software {
    fn usual_image(self) -> &'static str {
        match self {
            Software::Vllm => "vllm/vllm-openai:latest",
            Software::Sglang => "lmsysorg/sglang:latest",
            Software::Dynamo => "nvcr.io/nvidia/ai-dynamo/vllm-runtime:latest",
            Software::Bedplate => "bedplate:latest",
        }
    }

    /// Lets other pods reach the engine.
    fn reachable(self) -> &'static str {
        match self {
            Software::Sglang => " --host 0.0.0.0",
            Software::Bedplate => " --listen 0.0.0.0:8000 --public",
            Software::Vllm | Software::Dynamo => "",
        }
    }
}

impl Deployment<'_> {
    /// The documents, one after the other; `max_seqs` is how many requests a replica takes at once.
    pub fn manifests(&self, pools: &[Pool], max_seqs: u32) -> String {
        let missing = pools.iter().find(|pool| pool.command.is_empty());
        if let Some(pool) = missing {
            return pool.remarks.iter().map(|remark| format!("# {remark}\n")).collect();
        }
        if self.software == Software::Dynamo {
            return self.graph(pools);
        }
        if pools.len() > 1 && self.software != Software::Sglang {
            return "# two pools need a router that knows them: write them for dynamo or sglang\n".to_owned();
        }
        let mut documents: Vec<String> = Vec::new();
        for pool in pools {
            let name = self.name_of(pool);
            documents.push(match pool.nodes {
                1 => self.deployment(pool, &name),
                _ => self.leader_and_workers(pool, &name),
            });
            documents.push(self.service(pool, &name));
            let taken: u32 = pools.iter().map(Pool::gpus).sum();
            let more = self.gpus.saturating_sub(taken) / (pool.nodes * pool.gpus_per_node).max(1);
            if pools.len() == 1 && more > 0 {
                documents.push(self.scaler(pool, &name, pool.replicas + more, max_seqs));
            }
        }
        if pools.len() > 1 {
            documents.extend(self.router(pools));
        }
        documents.join("---\n")
    }

    fn name_of(&self, pool: &Pool) -> String {
        match pool.duty {
            Duty::Both => self.name.to_owned(),
            Duty::Prefill => format!("{}-prefill", self.name),
            Duty::Decode => format!("{}-decode", self.name),
        }
    }

    fn image(&self) -> &str {
        self.image.unwrap_or(self.software.usual_image())
    }

    fn deployment(&self, pool: &Pool, name: &str) -> String {
        let heading = format!("# {}\n", pool.title_in_cluster());
        let pod = self.pod(pool, 6, "exec ", true);
        format!(
            "{heading}apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  replicas: {}
  selector: {{matchLabels: {{app: {name}}}}}
  strategy: {{rollingUpdate: {{maxSurge: 0, maxUnavailable: 1}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
{pod}",
            pool.replicas
        )
    }

    fn leader_and_workers(&self, pool: &Pool, name: &str) -> String {
        let heading = format!("# {}\n", pool.title_in_cluster());
        let prefix = "RANK=$LWS_WORKER_INDEX; HEAD=$LWS_LEADER_ADDRESS; exec ";
        let (leader, worker) = (self.pod(pool, 8, prefix, true), self.pod(pool, 8, prefix, false));
        format!(
            "{heading}apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: {name}}}
spec:
  replicas: {}
  leaderWorkerTemplate:
    size: {}
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata: {{labels: {{app: {name}}}}}
      spec:
{leader}    workerTemplate:
      spec:
{worker}",
            pool.replicas, pool.nodes
        )
    }

    /// What a node runs; only those that answer requests are asked whether they do.
    fn pod(&self, pool: &Pool, indent: usize, prefix: &str, answers: bool) -> String {
        let port = self.software.port();
        let command = format!("{prefix}{}{}", pool.command.join(" "), self.software.reachable());
        let probes = format!(
            "  ports: [{{name: http, containerPort: {port}}}]
  startupProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 10, failureThreshold: 360}}
  readinessProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 5}}
"
        );
        let text = format!(
            "{}terminationGracePeriodSeconds: 120
containers:
- name: engine
  image: {}
  command: [sh, -c, {}]
  env:
  - {{name: HF_TOKEN, valueFrom: {{secretKeyRef: {{name: hf-token, key: token, optional: true}}}}}}
  resources: {{limits: {{{}: {}}}}}
{}  securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}, seccompProfile: {{type: RuntimeDefault}}}}
  volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
",
            pool.selector(""),
            self.image(),
            quote::yaml(&command),
            self.resource,
            pool.gpus_per_node,
            if answers { &probes } else { "" },
        );
        text.lines().map(|line| format!("{}{line}\n", " ".repeat(indent))).collect()
    }

    fn service(&self, pool: &Pool, name: &str) -> String {
        let leader = if pool.nodes > 1 { ", leaderworkerset.sigs.k8s.io/worker-index: \"0\"" } else { "" };
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}{leader}}}
  ports: [{{name: http, port: 80, targetPort: http}}]
"
        )
    }

    /// More replicas once those that there are have most of their sequence slots taken.
    fn scaler(&self, pool: &Pool, name: &str, most: u32, max_seqs: u32) -> String {
        let (version, kind) = match pool.nodes {
            1 => ("apps/v1", "Deployment"),
            _ => ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
        };
        format!(
            "# needs `bedplate scheduler --external-metrics` in the cluster, see docs/kubernetes-scheduler.md
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: {name}}}
spec:
  scaleTargetRef: {{apiVersion: {version}, kind: {kind}, name: {name}}}
  minReplicas: {}
  maxReplicas: {most}
  metrics:
  - type: External
    external:
      metric: {{name: bedplate_requests_under_way, selector: {{matchLabels: {{app: {name}}}}}}}
      target: {{type: AverageValue, averageValue: \"{}\"}}
  behavior: {{scaleDown: {{stabilizationWindowSeconds: 600}}}}
",
            pool.replicas,
            (max_seqs * 4 / 5).max(1),
        )
    }

    /// SGLang's router finds the pods of both pools by their labels.
    fn router(&self, pools: &[Pool]) -> Vec<String> {
        let name = format!("{}-router", self.name);
        let (mut selectors, port) = (String::new(), self.software.port());
        for pool in pools {
            let flag = if pool.duty == Duty::Prefill { "--prefill-selector" } else { "--decode-selector" };
            selectors += &format!(" {flag} app={}", self.name_of(pool));
        }
        let command = format!(
            "exec python -m sglang_router.launch_router --host 0.0.0.0 --port {port} --pd-disaggregation \
             --service-discovery --service-discovery-port {port}{selectors}"
        );
        let account = format!(
            "apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}}}
rules: [{{apiGroups: [\"\"], resources: [pods], verbs: [get, list, watch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}}}
subjects: [{{kind: ServiceAccount, name: {name}}}]
"
        );
        let deployment = format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      serviceAccountName: {name}
      containers:
      - name: router
        image: {}
        command: [sh, -c, {}]
        ports: [{{name: http, containerPort: {port}}}]
        readinessProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 5}}
        securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}, seccompProfile: {{type: RuntimeDefault}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 80, targetPort: http}}]
",
            self.image(),
            quote::yaml(&command),
        );
        vec![account, deployment]
    }

    /// Dynamo's own kind: its operator starts the frontend and the workers, and lets the nodes of one find each other.
    fn graph(&self, pools: &[Pool]) -> String {
        let mut text = format!(
            "apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {{name: {}}}
spec:
  components:
  - name: Frontend
    type: frontend
    replicas: 1
    podTemplate:
      spec:
        containers:
        - name: main
          image: {}
          command: [python3, -m, dynamo.frontend, --router-mode, kv]
",
            self.name,
            self.image()
        );
        for pool in pools {
            let (name, kind) = match pool.duty {
                Duty::Both => ("Worker", "worker"),
                Duty::Prefill => ("PrefillWorker", "prefill"),
                Duty::Decode => ("DecodeWorker", "decode"),
            };
            let multinode = if pool.nodes > 1 {
                format!("    multinode: {{nodeCount: {}}}\n", pool.nodes)
            } else {
                String::new()
            };
            // The operator says how the nodes meet.
            let command: Vec<&str> = pool
                .command
                .iter()
                .map(String::as_str)
                .filter(|flag| {
                    !flag.contains("$RANK") && !flag.contains("$HEAD") && !flag.contains("$((RANK")
                })
                .collect();
            text += &format!(
                "  - name: {name}
    type: {kind}
    replicas: {}
{multinode}    podTemplate:
      spec:
{}        containers:
        - name: main
          image: {}
          command: [sh, -c, {}]
          envFrom: [{{secretRef: {{name: hf-token-secret, optional: true}}}}]
          resources: {{limits: {{{}: \"{}\"}}}}
",
                pool.replicas,
                pool.selector("        "),
                self.image(),
                quote::yaml(&format!("exec {}", command.join(" "))),
                self.resource,
                pool.gpus_per_node,
            );
        }
        text
    }
}

impl Pool {
    fn gpus(&self) -> u32 {
        self.replicas * self.nodes * self.gpus_per_node
    }

    /// The line that keeps it on its machines, where the pools have different ones.
    fn selector(&self, indent: &str) -> String {
        self.machine.as_ref().map_or(String::new(), |machine| {
            format!("{indent}nodeSelector: {{node.kubernetes.io/instance-type: {}}}\n", quote::yaml(machine))
        })
    }

    fn title_in_cluster(&self) -> String {
        let over = if self.nodes > 1 { format!(" over {} nodes", self.nodes) } else { String::new() };
        let gpus = self.nodes * self.gpus_per_node;
        let mut title = format!("{} {}(s) of {gpus} GPU(s) each{over}", self.replicas, self.duty.name());
        for remark in &self.remarks {
            title += &format!("; {remark}");
        }
        title
    }
}
