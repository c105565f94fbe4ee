//! What the caller may add to a description.

/// Choices for [`import`](crate::import). The default adds nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The cluster's name, where the description has none or another.
    pub name: Option<String>,
    /// The catalog instance that every node with GPUs is; needed where the description names no hardware,
    /// and refused where it names another.
    pub instance: Option<String>,
    /// The accelerator of nodes whose description counts GPUs without saying which.
    pub accelerator: Option<String>,
    /// Takes a Kubernetes node whose hardware is not told, or told in contradictions, as a machine with that many GPUs of no
    /// known type, where it would be refused otherwise.
    pub allows_unknown: bool,
    pub blocks: Blocks,
    /// The topology of a `topology.yaml` to use, where it has several.
    pub topology: Option<String>,
}

/// What a block of Slurm's block topology is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Blocks {
    /// A scale-up domain where its nodes are of a kind that has domains over several nodes (GB200, GB300,
    /// Trainium UltraServers), else a leaf.
    #[default]
    Automatic,
    /// A scale-up domain, such as an NVL72 rack.
    Domains,
    /// A group of nodes below one leaf.
    Leaves,
}
