//! What must hold at every step, and what must be so in the end.

use super::*;

impl World {
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(job) = self.lost {
            return Err(format!("{job} was acknowledged and is lost"));
        }
        let mut owners: BTreeMap<u64, u32> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let mut taken = BTreeMap::new();
            for (run, (_, ranks)) in &node.alive {
                if ranks.is_empty() {
                    continue;
                }
                if let Some(other) = owners.insert(run.job, run.number).filter(|other| *other != run.number) {
                    return Err(format!("job {} runs twice: runs {other} and {}", run.job, run.number));
                }
                let Some(launch) = node.launches.get(run).filter(|_| !node.suspended.contains(run)) else {
                    continue;
                };
                for device in &launch.devices {
                    if let Some(other) = taken.insert(*device, *run) {
                        return Err(format!("device {device} of {} has {other} and {run}", node.name));
                    }
                }
                self.check_whole(at, launch)?;
            }
        }
        Ok(())
    }

    /// No rank runs before every node of its gang was ready.
    fn check_whole(&self, at: usize, launch: &Launch) -> Result<(), String> {
        for peer in &launch.peers {
            let node = self.nodes.iter().position(|node| node.name == peer.name).expect("peers are nodes");
            if !self.prepared.contains(&(launch.run, node)) {
                let name = &self.nodes[at].name;
                return Err(format!("{} runs on {name} though {} was not ready", launch.run, peer.name));
            }
        }
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let now = Time(self.now + self.control_skew);
        // A node that was taken out late is put back before the end.
        let serve = control.nodes(now).iter().all(|node| node.state == "idle");
        control.is_idle() && serve && self.nodes.iter().all(|node| node.alive.is_empty())
    }

    pub(super) fn check_end(&self) -> Result<(), String> {
        let control = self.control.as_ref().ok_or("the control plane is away in the calm")?;
        let now = Time(self.now + self.control_skew);
        for job in self.acknowledged.keys() {
            let live = control.job(*job);
            match self.ended(control, *job) {
                Some(_) => {}
                None if live.is_some() => {
                    let why = control.explain(*job, now).map(|why| why.wait.to_string());
                    return Err(format!("{job} did not end: {:?} {why:?}", live.map(|job| job.life)));
                }
                None => return Err(format!("{job} was acknowledged and is lost")),
            }
        }
        self.check_successes(control)?;
        for job in &self.cancelled {
            let state = self.ended(control, *job);
            if state.is_none_or(|state| state == JobState::Waiting) {
                return Err(format!("{job} was cancelled and is {state:?}"));
            }
        }
        for node in control.nodes(now) {
            if node.state != "idle" || node.gpus_free != GPUS {
                return Err(format!("{} is {} with {} free GPUs", node.name, node.state, node.gpus_free));
            }
        }
        for node in &self.nodes {
            if !node.alive.is_empty() {
                return Err(format!("{} still runs {:?}", node.name, node.alive.keys()));
            }
            if node.agent.as_ref().is_some_and(Agent::is_busy) {
                return Err(format!("the agent of {} still holds runs", node.name));
            }
        }
        Ok(())
    }

    /// A job that succeeded has a run of which every rank ended well.
    fn check_successes(&self, control: &Control) -> Result<(), String> {
        for job in self.acknowledged.keys() {
            let mut runs =
                self.done.range(RunId { job: job.0, number: 0 }..RunId { job: job.0 + 1, number: 0 });
            let is_whole = |(run, ranks): (&RunId, &BTreeSet<u32>)| {
                self.world_sizes.get(run).is_some_and(|size| ranks.len() as u32 == *size)
            };
            if self.ended(control, *job) == Some(JobState::Succeeded) && !runs.any(is_whole) {
                return Err(format!("{job} counts as succeeded, and no run of it was done"));
            }
        }
        Ok(())
    }
}
