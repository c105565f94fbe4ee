//! The processes of a node: its agent, the ranks of its runs and the fork server that ends them, and how they crash and freeze.

use super::*;

impl World {
    pub(super) fn start_agent(&mut self, node: usize) {
        let is_first = self.nodes[node].incarnation.is_multiple_of(1000);
        self.nodes[node].incarnation += 1;
        let margin = if self.bug == Some(Bug::IgnoresLease) { Span::ZERO } else { Span(500) };
        let rules = AgentRules { margin, ..AgentRules::default() };
        let now = self.agent_time(node);
        self.nodes[node].agent = Some(Agent::new(rules, now));
        self.nodes[node].launches.clear();
        self.after(10, Coming::Connect { node });
        self.starts_reading(node);
        if is_first {
            self.after(50, Coming::AgentTick { node });
        }
    }

    pub(super) fn crash_agent(&mut self, node: usize) {
        if self.nodes[node].agent.take().is_none() {
            return;
        }
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].frozen_until = 0;
        self.new_fork_server(node);
        if let Some(link) = self.nodes[node].link.take() {
            self.links.remove(&link);
            // Half of the time the whole host is gone and nobody closes anything.
            if self.random.percent(50) {
                let delay = self.random.between(1, 20);
                self.after(delay, Coming::ControlHearsClose { link, how: Unlinked::Closed });
            }
        }
        // Its fork server kills what is left.
        let sweep = self.random.between(1, 300);
        self.after(sweep, Coming::Swept { node, incarnation });
        let away = sweep + self.random.between(100, 15_000);
        self.after(away, Coming::AgentBack { node });
    }

    pub(super) fn agent_time(&self, node: usize) -> Time {
        Time(self.now + self.nodes[node].skew)
    }

    pub(super) fn with_agent(&mut self, node: usize, act: impl FnOnce(&mut Agent, Time)) {
        let now = self.agent_time(node);
        let Some(agent) = &mut self.nodes[node].agent else {
            return;
        };
        act(agent, now);
        let (acts, lease) = (agent.take_acts(), agent.lease());
        let given = agent.is_busy().then(|| agent.lease_ends());
        self.nodes[node].fork_server.given = given;
        for act in acts {
            match act {
                Act::Send(message) => {
                    if let Some(link) = self.nodes[node].link {
                        self.send_to_control(link, message);
                    }
                }
                act if self.is_fork_server_frozen(node) => self.nodes[node].fork_server.orders.push(act),
                act => self.act(node, act),
            }
        }
        if !self.is_fork_server_frozen(node) {
            self.nodes[node].fork_server.lease = lease;
        }
    }

    /// The fork server does something.
    pub(super) fn act(&mut self, node: usize, act: Act) {
        let quick = self.random.between(1, 30);
        match act {
            Act::Send(_) => {}
            Act::Prepare(launch) => self.prepare(node, *launch),
            Act::Start { run, .. } => self.start_ranks(node, run),
            Act::Signal { run, .. } => {
                // Some ranks write a checkpoint and go; some do not care.
                // A stopped process would never learn of it, so it is set going.
                self.nodes[node].suspended.remove(&run);
                if self.random.percent(70) {
                    let delay = self.random.between(1, 3_000);
                    self.end_ranks(node, run, RankEnd::Signal(15), delay);
                }
            }
            Act::Kill { run } => {
                let ignores = self.bug == Some(Bug::IgnoresLease) && self.nodes[node].link.is_none();
                if !ignores {
                    self.happens(
                        node,
                        quick,
                        Happened::NotPrepared { run, why: Unready::Busy { why: "killed".into() } },
                    );
                    self.end_ranks(node, run, RankEnd::Signal(9), quick);
                }
            }
            Act::Clean { run } => {
                let delay = self.random.between(1, 100);
                self.end_ranks(node, run, RankEnd::Signal(9), 1);
                let failed = self.hostility(node, run) == Some("epilog");
                let epilog_failed = failed.then(|| "exit code 1".to_owned());
                self.happens(
                    node,
                    delay,
                    Happened::Cleaned { run, spent: Spent { epilog_failed, ..Spent::default() } },
                );
            }
            Act::Suspend { run } => drop(self.nodes[node].suspended.insert(run)),
            Act::Resume { run } => drop(self.nodes[node].suspended.remove(&run)),
            Act::Step(_) => {}
            Act::Check => {
                let fault = self.nodes[node].sensor.is_grave().then(|| "products differ".to_owned());
                self.happens(node, 500, Happened::Checked { fault });
            }
            Act::Disconnect => {}
        }
    }

    pub(super) fn happens(&mut self, node: usize, delay: u64, happened: Happened) {
        let incarnation = self.nodes[node].incarnation;
        self.after(delay, Coming::Process { node, incarnation, happened });
    }

    pub(super) fn prepare(&mut self, node: usize, launch: Launch) {
        let run = launch.run;
        self.nodes[node].launches.insert(run, launch);
        let delay = self.random.between(1, 200);
        if self.bug == Some(Bug::StartsAlone) {
            self.start_ranks(node, run);
        }
        let hostility = self.hostility(node, run);
        if hostility == Some("unready") {
            return;
        }
        let fails = hostility == Some("prolog") || self.is_unlucky();
        let happened = if fails {
            let why = Unready::Prolog { status: 1, output: "no such device".into() };
            Happened::NotPrepared { run, why }
        } else {
            Happened::Prepared { run, master_port: Some(20_000) }
        };
        self.happens(node, delay, happened);
    }

    pub(super) fn start_ranks(&mut self, node: usize, run: RunId) {
        let Some(launch) = self.nodes[node].launches.get(&run).cloned() else {
            return;
        };
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].alive.insert(run, (incarnation, launch.ranks.iter().copied().collect()));
        // A gang's ranks end at about the same time; the job's name says when.
        self.world_sizes.insert(run, launch.world_size);
        if launch.survives {
            self.survivors.insert(JobId(run.job));
        }
        let hostility = self.hostility(node, run);
        let length: u64 = match hostility {
            Some("hangs") => 2 * (STORM + CALM),
            _ => launch.job_name.parse().unwrap_or(1_000),
        };
        if hostility == Some("probe") {
            let reason = "its probe ended with 1".to_owned();
            self.happens(node, length / 2, Happened::ProbeFailed { run: Some(run), reason });
        }
        for rank in launch.ranks {
            let fails = hostility == Some("fails") || self.is_unlucky();
            let delay = if fails { self.random.between(1, length + 1) } else { length + u64::from(rank) };
            let end = RankEnd::Exit(i32::from(fails));
            self.happens(node, delay, Happened::RankEnded { run, rank, end });
            if rank == 0 {
                let begun = Happened::Report { run, rank: 0, report: Report::Progress { step: 1 } };
                self.happens(node, 20, begun);
                let step = if hostility == Some("lies") { u64::MAX } else { self.now };
                let checkpoint = Checkpoint { step, path: None };
                self.happens(
                    node,
                    length / 2,
                    Happened::Report { run, rank: 0, report: Report::Checkpoint(checkpoint) },
                );
            }
        }
    }

    /// Something fails for no reason; where one user abuses the cluster only his jobs fail, so that nobody else accuses a node.
    fn is_unlucky(&mut self) -> bool {
        self.is_stormy && !self.abuse.is_on && self.random.percent(2)
    }

    pub(super) fn end_ranks(&mut self, node: usize, run: RunId, end: RankEnd, delay: u64) {
        let alive =
            self.nodes[node].alive.get(&run).map_or(Vec::new(), |(_, ranks)| ranks.iter().copied().collect());
        for rank in alive {
            self.happens(node, delay, Happened::RankEnded { run, rank, end });
        }
    }

    pub(super) fn process(&mut self, node: usize, incarnation: u64, happened: Happened) {
        if self.nodes[node].agent.is_none() || self.nodes[node].incarnation != incarnation {
            return;
        }
        if let Happened::Prepared { run, .. } = &happened {
            self.prepared.insert((*run, node));
        }
        if let Happened::RankEnded { run, rank, .. } = &happened {
            let ranks = self.nodes[node].alive.get_mut(run);
            if !ranks.is_some_and(|(_, ranks)| ranks.remove(rank)) {
                return;
            }
        }
        if let Happened::RankEnded { run, rank, end: RankEnd::Exit(0) } = &happened {
            self.done.entry(*run).or_default().insert(*rank);
        }
        self.nodes[node].alive.retain(|_, (_, ranks)| !ranks.is_empty());
        match self.is_fork_server_frozen(node) {
            true => self.nodes[node].fork_server.news.push(happened),
            false => self.hear(node, incarnation, happened),
        }
    }

    /// The agent hears what its processes did, at once or when it moves again.
    pub(super) fn hear(&mut self, node: usize, incarnation: u64, happened: Happened) {
        if self.nodes[node].agent.is_none() || self.nodes[node].incarnation != incarnation {
            return;
        }
        if self.is_frozen(node) {
            return self.when_thawed(node, Coming::Heard { node, incarnation, happened });
        }
        self.with_agent(node, |agent, now| agent.happened(happened, now));
    }

    pub(super) fn hostility(&self, node: usize, run: RunId) -> Option<&'static str> {
        let named = self.nodes[node].launches.get(&run)?.environment.get(HOSTILITY)?;
        HOSTILE.into_iter().find(|each| each == named)
    }

    // Processes that stand still.

    pub(super) fn is_frozen(&self, node: usize) -> bool {
        self.now < self.nodes[node].frozen_until
    }

    pub(super) fn is_fork_server_frozen(&self, node: usize) -> bool {
        self.now < self.nodes[node].fork_server.frozen_until
    }

    pub(super) fn when_thawed(&mut self, node: usize, coming: Coming) {
        let left = self.nodes[node].frozen_until.saturating_sub(self.now);
        self.after(left, coming);
    }

    pub(super) fn freeze_fork_server(&mut self, node: usize, length: u64) {
        self.nodes[node].fork_server.frozen_since = self.now;
        self.nodes[node].fork_server.frozen_until = self.now + length;
        let fork_server = self.nodes[node].fork_server.number;
        self.after(length, Coming::ForkServerBack { node, fork_server });
    }

    /// Both; for one that stands still already it is as it was.
    pub(super) fn freeze_both(&mut self, node: usize, agent: u64, fork_server: u64) {
        self.nodes[node].frozen_until = self.nodes[node].frozen_until.max(self.now + agent);
        if !self.is_fork_server_frozen(node) {
            self.freeze_fork_server(node, fork_server);
        }
    }

    /// The fork server moves again: it does what it was told, and tells what it saw.
    pub(super) fn thaw_fork_server(&mut self, node: usize, fork_server: u64) {
        if self.nodes[node].fork_server.number != fork_server {
            return;
        }
        let orders = std::mem::take(&mut self.nodes[node].fork_server.orders);
        let news = std::mem::take(&mut self.nodes[node].fork_server.news);
        let now = self.agent_time(node);
        let is_late = self.nodes[node].fork_server.given.is_some_and(|until| until <= now);
        for act in orders {
            match act {
                Act::Start { run, .. } if is_late && self.bug != Some(Bug::TrustsBoth) => {
                    self.happens(node, 1, Happened::LeaseEnded { run });
                }
                act => self.act(node, act),
            }
        }
        let incarnation = self.nodes[node].incarnation;
        news.into_iter().for_each(|happened| self.hear(node, incarnation, happened));
    }

    /// Ends all ranks when the agent has not renewed the lease in time.
    pub(super) fn enforce_lease(&mut self, node: usize) {
        let now = self.agent_time(node);
        let is_over = self.nodes[node].fork_server.lease.is_some_and(|until| until <= now);
        let trusts = matches!(self.bug, Some(Bug::IgnoresLease | Bug::TrustsAgents));
        if self.is_fork_server_frozen(node) || !is_over || trusts {
            return;
        }
        self.nodes[node].fork_server.lease = None;
        let runs: Vec<RunId> = self.nodes[node].alive.keys().copied().collect();
        for run in runs {
            self.happens(node, 1, Happened::LeaseEnded { run });
            self.end_ranks(node, run, RankEnd::Signal(9), 2);
        }
    }

    /// The agent replaces a fork server that does not answer.
    pub(super) fn watch_fork_server(&mut self, node: usize) {
        let Node { fork_server, agent: Some(_), .. } = &self.nodes[node] else {
            return;
        };
        let now = self.agent_time(node);
        let is_over =
            fork_server.lease.is_some_and(|until| until + Span(FORK_SERVER_SILENCE_AFTER_LEASE) <= now);
        let frozen_since = fork_server.frozen_since;
        let is_silent = self.now >= frozen_since + FORK_SERVER_SILENCE;
        if self.is_fork_server_frozen(node) && (is_over || is_silent) {
            self.replace_fork_server(node);
        }
    }

    /// A run whose agent and run shim both stand still ends with its lease.
    pub(super) fn end_what_outlives_its_lease(&mut self, node: usize) {
        let until = self.nodes[node].fork_server.given.map(|until| until + Span(OUTLIVES_LEASE));
        let is_over = until.is_some_and(|until| until <= self.agent_time(node));
        let both =
            self.nodes[node].agent.is_some() && self.is_frozen(node) && self.is_fork_server_frozen(node);
        if is_over && both && self.bug != Some(Bug::TrustsBoth) {
            self.replace_fork_server(node);
        }
    }

    fn replace_fork_server(&mut self, node: usize) {
        self.tell(&format!("the fork server of n{} is replaced", node + 1));
        let ForkServer { orders, news, .. } = self.new_fork_server(node);
        self.nodes[node].alive.clear();
        let launches: Vec<RunId> = self.nodes[node].launches.keys().copied().collect();
        for run in launches {
            self.happens(node, 20, Happened::Lost { run });
        }
        // What it was to clean up, its successor cleans up; what it was to start is lost.
        let cleaned = news.into_iter().filter(|happened| matches!(happened, Happened::Cleaned { .. }));
        cleaned.for_each(|happened| self.happens(node, 25, happened));
        for act in orders {
            match act {
                Act::Clean { .. } => self.act(node, act),
                Act::Prepare(launch) => self.happens(node, 20, Happened::Lost { run: launch.run }),
                _ => {}
            }
        }
    }

    /// Another fork server takes the place of this one.
    pub(super) fn new_fork_server(&mut self, node: usize) -> ForkServer {
        let number = self.nodes[node].fork_server.number + 1;
        std::mem::replace(&mut self.nodes[node].fork_server, ForkServer { number, ..ForkServer::default() })
    }
}
