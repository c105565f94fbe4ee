//! What a job needs, all of it at once.

use bedplate_units::Bytes;

/// The roles of a job. All nodes of all roles start together or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Gang {
    pub roles: Vec<Role>,
}

/// A number of equal nodes with the same duty.
#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    pub name: String,
    pub nodes: u32,
    pub tasks_per_node: u32,
    pub gpus_per_node: u32,
    /// Thousandths of one GPU, for a role of one node and one GPU that shares it with others.
    pub gpu_share: Option<u16>,
    /// Name or alias of the accelerator in the catalog; any will do when absent.
    pub accelerator: Option<String>,
    pub cpus_per_task: u32,
    /// Host memory per node; the node's fair share when absent.
    pub memory_per_node: Option<Bytes>,
    /// Nothing else may run on the role's nodes.
    pub is_exclusive: bool,
    pub elastic: Option<Elastic>,
}

/// The role may run with `min` to `max` nodes, in steps of `step` from `min` upward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    pub min: u32,
    pub max: u32,
    pub step: u32,
}

impl Elastic {
    /// Whether `nodes` is one of the sizes the role may have.
    pub fn allows(&self, nodes: u32) -> bool {
        self.step > 0
            && (self.min..=self.max).contains(&nodes)
            && (nodes - self.min).is_multiple_of(self.step)
    }

    /// The sizes from small to large.
    pub fn sizes(&self) -> impl Iterator<Item = u32> {
        (self.min..=self.max).step_by(self.step.max(1) as usize)
    }
}

impl Role {
    /// The name of a job's only role where none is given.
    pub const ONLY: &'static str = "main";

    /// One node with one task and nothing else asked for.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            nodes: 1,
            tasks_per_node: 1,
            gpus_per_node: 0,
            gpu_share: None,
            accelerator: None,
            cpus_per_task: 1,
            memory_per_node: None,
            is_exclusive: false,
            elastic: None,
        }
    }

    pub fn gpus(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.gpus_per_node)
    }

    pub fn tasks(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.tasks_per_node)
    }
}

impl Gang {
    /// A gang of a single role.
    pub fn of(role: Role) -> Self {
        Self { roles: vec![role] }
    }

    pub fn nodes(&self) -> u64 {
        self.roles.iter().map(|role| u64::from(role.nodes)).sum()
    }

    pub fn gpus(&self) -> u64 {
        self.roles.iter().map(Role::gpus).sum()
    }

    pub fn tasks(&self) -> u64 {
        self.roles.iter().map(Role::tasks).sum()
    }

    pub fn is_elastic(&self) -> bool {
        self.roles.iter().any(|role| role.elastic.is_some())
    }
}
