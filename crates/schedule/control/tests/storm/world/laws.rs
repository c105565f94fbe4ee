//! What must hold at every step, and what must be so in the end.

use bedplate_control::NodeView;

use super::*;

impl World {
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(job) = self.lost {
            return Err(format!("{job} was acknowledged and is lost"));
        }
        if let Some(broken) = self.findings.broken_law() {
            return Err(broken.to_owned());
        }
        let mut owners: BTreeMap<u64, u32> = BTreeMap::new();
        let mut places: BTreeMap<(u64, u32), &str> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let mut taken = BTreeMap::new();
            for (run, (_, ranks)) in &node.alive {
                if ranks.is_empty() {
                    continue;
                }
                // Ranks that joined others are of the same world.
                let world = node.launches.get(run).and_then(|launch| launch.joins).unwrap_or(run.number);
                if let Some(other) = owners.insert(run.job, world).filter(|other| *other != world) {
                    return Err(format!("job {} runs twice: runs {other} and {world}", run.job));
                }
                for rank in ranks {
                    if let Some(other) = places.insert((run.job, *rank), &node.name) {
                        let name = &node.name;
                        return Err(format!("rank {rank} of job {} runs on {other} and {name}", run.job));
                    }
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
        if launch.joins.is_some() {
            return Ok(());
        }
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
        let now = self.clock.now();
        // A node that was taken out late is put back before the end, unless it is broken.
        let serve = control
            .nodes(now)
            .iter()
            .zip(&self.nodes)
            .all(|(view, node)| view.state == if node.sensor.is_grave() { "drained" } else { "idle" });
        control.is_idle() && serve && self.nodes.iter().all(|node| node.alive.is_empty())
    }

    pub(super) fn check_end(&self) -> Result<(), String> {
        let control = self.control.as_ref().ok_or("the control plane is away in the calm")?;
        let now = self.clock.now();
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
        for (view, node) in control.nodes(now).iter().zip(&self.nodes) {
            if node.sensor.is_grave() {
                check_broken(view)?;
            } else if view.state != "idle"
                || view.gpus_free != GPUS
                || view.findings.len() != node.sensor.count()
            {
                let (state, free, found) = (view.state, view.gpus_free, view.findings.len());
                return Err(format!(
                    "{} is well and {state} with {free} free GPUs and {found} findings",
                    view.name
                ));
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
            // The last ranks of a gang that survives losses may be fewer than it began with.
            let survives = self.survivors.contains(job);
            let is_whole = |(run, ranks): (&RunId, &BTreeSet<u32>)| {
                survives || self.world_sizes.get(run).is_some_and(|size| ranks.len() as u32 == *size)
            };
            if self.ended(control, *job) == Some(JobState::Succeeded) && !runs.any(is_whole) {
                return Err(format!("{job} counts as succeeded, and no run of it was done"));
            }
        }
        Ok(())
    }
}

/// A node that finds something to the end is out of service, and people can read why.
pub(super) fn check_broken(view: &NodeView) -> Result<(), String> {
    let has_reason = view.reason.as_ref().is_some_and(|reason| !reason.text.is_empty());
    // What runs there may finish.
    let is_out = matches!(view.state, "drained" | "draining");
    if !is_out || !has_reason || view.findings.is_empty() {
        let (state, reason, found) = (view.state, &view.reason, view.findings.len());
        return Err(format!("{} is broken and {state} for {reason:?} with {found} findings", view.name));
    }
    Ok(())
}
