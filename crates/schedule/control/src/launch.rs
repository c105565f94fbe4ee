//! What a node must know to play its part in a run.

use bedplate_document::quote;
use bedplate_gangs::{JobId, NodeShare};
use bedplate_job::rank_environment::ArraySpan;
use bedplate_job::{Workload, devices_in};
use bedplate_topology::NodeId;

use crate::Control;
use crate::live::LiveJob;
use crate::run::ManagedRun;
use crate::wire::{JobFacts, Launch, Peer, Probe, Program};

impl Control {
    pub(crate) fn launch(&self, job: JobId, node: NodeId) -> Launch {
        let live = &self.jobs[&job];
        let run = &self.runs[&job];
        let here: Vec<&NodeShare> = run.shares.iter().filter(|share| share.node == node).collect();
        let roles = || here.iter().map(|share| &live.job.gang.roles[usize::from(share.role)]);
        let bits = here.iter().fold(0, |bits, share| bits | share.devices);
        let memory = roles().filter_map(|role| role.memory_per_node).map(|bytes| bytes.get() / 1_048_576.0);
        let node_index = run.shares.iter().position(|share| share.node == node).unwrap_or(0);
        let id = run.members[&node].id;
        Launch {
            run: id,
            joins: (id.number > run.began).then_some(run.began),
            survives: self.scheduler.request(job).is_some_and(|request| request.survives),
            job_name: live.job.name.clone(),
            user: live.row.user.clone(),
            node_index: node_index as u32,
            peers: self.peers(live, run),
            devices: devices_in(bits),
            shares_device: roles().any(|role| role.gpu_share.is_some()),
            cpus: roles().map(|role| role.cpus_per_task.saturating_mul(role.tasks_per_node)).sum(),
            memory_mib: memory.sum::<f64>().ceil() as u64,
            ranks: run.members[&node].ranks.clone(),
            world_size: run.members.values().map(|member| member.ranks.len() as u32).sum(),
            program: program(&live.job.workload),
            environment: live.job.environment.set.clone(),
            facts: self.facts(live, run),
            directory: live.job.working_directory.clone(),
            stdin: live.job.streams.stdin.clone(),
            stdout: live.job.streams.stdout.clone(),
            stderr: live.job.streams.stderr.clone(),
            appends: live.job.streams.is_appended || run.id.number > 1,
            prolog: command_line(&live.job.hooks.prolog),
            epilog: command_line(&live.job.hooks.epilog),
            probe: live.job.health.probe.as_ref().and_then(|probe| {
                let every_ms = (probe.every.get() * 1000.0) as u64;
                Some(Probe { command: command_line(&probe.command)?, every_ms })
            }),
            checkpoint: live.row.life.checkpoint.clone(),
        }
    }

    fn peers(&self, live: &LiveJob, run: &ManagedRun) -> Vec<Peer> {
        let peer = |share: &NodeShare| {
            let role = &live.job.gang.roles[usize::from(share.role)];
            let node = &self.nodes[share.node.0 as usize];
            Peer {
                name: node.name.clone(),
                address: node.address.clone(),
                role: role.name.clone(),
                tasks: role.tasks_per_node,
                gpus: share.devices.count_ones(),
            }
        };
        run.shares.iter().map(peer).collect()
    }

    fn facts(&self, live: &LiveJob, run: &ManagedRun) -> JobFacts {
        let settings = self.scheduler.settings();
        let policy = &live.job.policy;
        let first = &live.job.gang.roles[0];
        let ends = self.scheduler.ends_at(run.job()).unwrap_or(run.started);
        JobFacts {
            partition: policy.partition.clone().unwrap_or_else(|| settings.partitions[0].name.clone()),
            account: live.row.account.clone(),
            qos: policy.qos.clone().unwrap_or_else(|| settings.qos[0].name.clone()),
            submit_directory: live.job.working_directory.clone(),
            tasks_per_node: first.tasks_per_node,
            cpus_per_task: first.cpus_per_task,
            gpus_per_node: first.gpus_per_node,
            array_span: live.job.policy.array.as_ref().and_then(ArraySpan::of),
            accelerator: first.accelerator.clone(),
            memory_mib: first.memory_per_node.map(|bytes| (bytes.get() / 1_048_576.0).ceil() as u64),
            cluster: self.scheduler.cluster().name().to_owned(),
            array: live.row.array.map(|place| (place.array.0, place.index)),
            started_ms: run.started.0,
            ends_ms: ends.0,
            restarts: run.id.number - 1,
        }
    }
}

fn program(workload: &Workload) -> Program {
    match workload {
        Workload::Command { arguments } => Program::Command(arguments.clone()),
        Workload::Script { text } => Program::Script(text.clone()),
        Workload::Native { kind, configuration } => {
            Program::Command(vec!["bedplate".into(), kind.clone(), configuration.clone()])
        }
    }
}

/// One line for a shell; `None` when there is nothing to run.
fn command_line(arguments: &[String]) -> Option<String> {
    match arguments {
        [] => None,
        [line] => Some(line.clone()),
        arguments => {
            Some(arguments.iter().map(|argument| quote::shell(argument)).collect::<Vec<String>>().join(" "))
        }
    }
}
