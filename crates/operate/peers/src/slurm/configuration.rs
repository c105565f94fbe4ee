//! The files that Slurm's daemons read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::Slurm;
use super::process::output;

impl Slurm {
    pub(super) fn write_configuration(&self) -> std::io::Result<()> {
        fs::write(self.path("cgroup.conf"), "CgroupAutomount=no\n")?;
        if self.shape.gpus_per_node > 0 {
            fs::write(self.path("gres.conf"), self.gres())?;
        }
        if let Some(per_leaf) = self.shape.per_leaf {
            fs::write(self.path("topology.conf"), self.topology(per_leaf))?;
        }
        if self.shape.accounting {
            // slurmdbd insists on it.
            fs::write(self.path("slurmdbd.conf"), self.accounting_conf())?;
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(self.path("slurmdbd.conf"), mode)?;
        }
        fs::write(self.path("slurm.conf"), self.slurm_conf())
    }

    /// Half of the devices next to each socket.
    fn gres(&self) -> String {
        let (root, nodes) = (self.root.display(), self.shape.nodes);
        let (gpus, cores) = (self.shape.gpus_per_node, self.shape.cpus_per_node);
        let line = |first: [u32; 2], last: [u32; 2]| {
            format!(
                "NodeName=n[1-{nodes}] Name=gpu Type=h100 File={root}/dev/gpu[{}-{}] Cores={}-{}\n",
                first[0],
                last[0] - 1,
                first[1],
                last[1] - 1
            )
        };
        let middle = [gpus / 2, cores / 2];
        format!("AutoDetect=off\n{}{}", line([0, 0], middle), line(middle, [gpus, cores]))
    }

    fn topology(&self, per_leaf: u32) -> String {
        let nodes = self.shape.nodes;
        let leaves = nodes.div_ceil(per_leaf);
        let mut text = String::new();
        for leaf in 0..leaves {
            let (first, last) = (leaf * per_leaf + 1, ((leaf + 1) * per_leaf).min(nodes));
            text += &format!("SwitchName=leaf{} Nodes=n[{first}-{last}]\n", leaf + 1);
        }
        format!("{text}SwitchName=spine Switches=leaf[1-{leaves}]\n")
    }

    fn slurm_conf(&self) -> String {
        let (root, shape) = (self.root.display(), &self.shape);
        let (host, user) = (host(), user());
        let cpus = shape.cpus_per_node;
        let mut text = format!(
            "ClusterName=story\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\n\
             SlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\nAuthInfo=socket={root}/munge/socket,cred_expire={}\nCredType=cred/munge\n\
             StateSaveLocation={root}/state\nSlurmdSpoolDir={root}/spool/%n\nSlurmctldPidFile={root}/slurmctld.pid\n\
             SlurmdPidFile={root}/slurmd-%n.pid\nSlurmctldLogFile={root}/log/slurmctld.log\nSlurmdLogFile={root}/log/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nSwitchType=switch/none\nMailProg=/bin/true\n\
             ReturnToService=2\nSlurmdParameters=config_overrides\nJobAcctGatherType=jobacct_gather/none\nJobCompType=jobcomp/none\n\
             SchedulerType=sched/backfill\nSchedulerParameters=bf_interval=1,bf_continue,bf_window=2880,bf_resolution=60,sched_interval=1\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             PriorityType=priority/multifactor\nPriorityWeightJobSize=1000\nPriorityWeightPartition=10000\nPriorityMaxAge=1-0\n\
             PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nMinJobAge={}\nMaxJobCount=50000\nMaxArraySize=20001\n\
             MessageTimeout=60\n",
            self.ports.controller, shape.requeue_pause_s, shape.forgets_after_s
        );
        if shape.per_leaf.is_some() {
            text += "TopologyPlugin=topology/tree\n";
        }
        if shape.rest {
            text += &format!("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={root}/jwt.key\n");
        }
        text += &match shape.accounting {
            true => self.accounting_lines(),
            false => "AccountingStorageType=accounting_storage/none\n".to_owned(),
        };
        let (mut gres, mut sockets) = (String::new(), 1);
        if shape.gpus_per_node > 0 {
            text += "GresTypes=gpu\n";
            gres = format!(" Gres=gpu:h100:{}", shape.gpus_per_node);
            sockets = 2;
        }
        text += &shape.settings;
        for (at, port) in self.ports.nodes.iter().enumerate() {
            text += &format!(
                "NodeName=n{} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard={sockets} \
                 CoresPerSocket={} ThreadsPerCore=1 RealMemory={}{gres} State=UNKNOWN\n",
                at + 1,
                cpus / sockets,
                shape.memory_mib
            );
        }
        text + "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=requeue\n\
                PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=off\n"
    }

    fn accounting_lines(&self) -> String {
        let root = self.root.display();
        format!(
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={}\n\
             AccountingStoragePass={root}/munge/socket\nAccountingStorageEnforce=associations,limits,qos\n\
             AccountingStorageTRES=gres/gpu\nAccountingStoreFlags=job_comment,job_script\nPriorityWeightAge=1000\nPriorityWeightFairshare=100000\n\
             PriorityWeightQOS=50000\nPriorityDecayHalfLife=7-0\nPriorityCalcPeriod=1\n",
            self.ports.accounting
        )
    }

    fn accounting_conf(&self) -> String {
        let root = self.root.display();
        let tokens = match self.shape.rest {
            true => format!("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={root}/jwt.key\n"),
            false => String::new(),
        };
        format!(
            "AuthType=auth/munge\nAuthInfo=socket={root}/munge/socket\n{tokens}DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={}\n\
             SlurmUser={}\nLogFile={root}/log/slurmdbd.log\nPidFile={root}/slurmdbd.pid\n\
             StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={}\nStorageUser=slurm\nStoragePass=pw\n\
             StorageLoc=slurm_acct_db\n",
            self.ports.accounting,
            user(),
            self.ports.database
        )
    }
}

fn host() -> String {
    output(Command::new("hostname").arg("-s"))
}

/// Who starts it.
pub(super) fn user() -> String {
    output(Command::new("id").arg("-un"))
}
