//! Labels, annotations and resources, ours and those of others that we read or write.

/// The name by which pods ask for our scheduler.
pub const SCHEDULER: &str = "bedplate";

/// Label of everything that we have made, with [`SCHEDULER`] as its value.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Label of a JobSet or Job and of its pods: the job's name, shortened to what a label may hold.
pub const JOB: &str = "bedplate.dev/job";
/// Annotation: the job's name in full.
pub const NAME: &str = "bedplate.dev/name";
/// Annotation: the key under which a job was submitted; the same key is the same job.
pub const KEY: &str = "bedplate.dev/key";
/// Annotation: when it was submitted, in milliseconds since 1970; the server's own times are whole seconds.
pub const SUBMITTED: &str = "bedplate.dev/submitted";
/// Annotation: the job file, as the user wrote it.
pub const JOB_FILE: &str = "bedplate.dev/job-file";
/// Annotation: who submitted it, and for which account.
pub const USER: &str = "bedplate.dev/user";
pub const ACCOUNT: &str = "bedplate.dev/account";

/// Label of pods: the gang that they start with. Without it the gang is the pod's JobSet, its pod group, its Job, or the pod alone.
pub const GANG: &str = "bedplate.dev/gang";
/// Annotation of pods: how many pods the gang has.
pub const GANG_SIZE: &str = "bedplate.dev/gang-size";
/// Annotation of pods: those of the gang that ask for the same stand on different nodes (`true`), for our scheduler.
pub const APART: &str = "bedplate.dev/apart";
/// Annotation of pods: how long the gang may run, as in a job file (`90 min`, `2 h`). Without it the site's limit counts.
pub const TIME_LIMIT: &str = "bedplate.dev/time-limit";
/// Annotation of pods: the partition, the quality of service and the queue of the site's rules.
pub const PARTITION: &str = "bedplate.dev/partition";
pub const QOS: &str = "bedplate.dev/qos";
/// Annotation of pods: how close together its nodes must be (`leaf`, `spine`, …).
pub const CLOSENESS: &str = "bedplate.dev/within";
/// Annotation of pods: may be stopped for others and started again (`true`).
pub const PREEMPTIBLE: &str = "bedplate.dev/preemptible";
/// Annotation of a JobSet or Job: it is held by its owner (`true`); what a queue suspends has no such mark.
pub const HELD: &str = "bedplate.dev/held";
/// Annotation of a JobSet or Job: when it was cancelled, in milliseconds since 1970.
pub const CANCELLED: &str = "bedplate.dev/cancelled";
/// Annotation of a JobSet or Job: how often it was put back into its queue by hand.
pub const REQUEUES: &str = "bedplate.dev/requeues";
/// Annotation of a node: why it was taken out of service.
pub const DRAIN_REASON: &str = "bedplate.dev/drain-reason";
/// Label of a node that takes only what gangs have lost elsewhere (`true`).
pub const SPARE: &str = "bedplate.dev/spare";
/// Condition of a node: `True` where something was found for which it must not get anything new; the reason is the action.
pub const FINDING_CONDITION: &str = "BedplateFinding";
/// Taint of a node that was taken out of service for a finding.
pub const FINDING_TAINT: &str = "bedplate.dev/finding";

/// Names of JobSet.
pub const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
pub const JOBSET_JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
pub const JOBSET_REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
pub const JOBSET_RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/restart-attempt";

/// Names of Jobs.
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
pub const JOB_COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Names of Kueue.
pub const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";
pub const KUEUE_POD_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
pub const KUEUE_POD_GROUP_SIZE: &str = "kueue.x-k8s.io/pod-group-total-count";
pub const KUEUE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";
pub const KUEUE_PREFERRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-preferred-topology";

/// Resources that count as GPUs, in the order in which a node is asked for them.
pub const GPU_RESOURCES: [&str; 4] =
    ["nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neurondevice", "aws.amazon.com/neuron"];
/// Network interfaces of AWS.
pub const EFA: &str = "vpc.amazonaws.com/efa";
