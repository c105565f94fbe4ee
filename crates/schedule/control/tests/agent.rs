//! The agent against orders that come late, in another order, or after it stood still.

use bedplate_control::agent::{Act, Agent, AgentRules, Happened, LinkLoss};
use bedplate_control::wire::{Audience, FromAgent, Launch, Program, RunId, ToAgent};
use bedplate_gangs::{Span, Time};

const FIRST: RunId = RunId { job: 1, number: 1 };
const SECOND: RunId = RunId { job: 2, number: 1 };

fn launch(run: RunId) -> Box<Launch> {
    let facts = serde_json::from_value(serde_json::json!({
        "partition": "all", "account": "root", "qos": "normal", "submit_directory": null, "tasks_per_node": 1,
        "cpus_per_task": 1, "gpus_per_node": 1, "array": null, "started_ms": 0, "ends_ms": 0, "restarts": 0,
    }));
    Box::new(Launch {
        run,
        joins: None,
        survives: false,
        job_name: "job".into(),
        user: "ada".into(),
        node_index: 0,
        peers: Vec::new(),
        devices: vec![0],
        shares_device: false,
        cpus: 1,
        memory_mib: 0,
        ranks: vec![0],
        world_size: 1,
        program: Program::Command(vec!["train".into()]),
        environment: Default::default(),
        facts: facts.expect("the facts of a run"),
        directory: None,
        stdin: None,
        stdout: None,
        stderr: None,
        appends: false,
        prolog: None,
        epilog: None,
        probe: None,
        checkpoint: None,
    })
}

/// An agent that was welcomed at time 0, with a heartbeat every half second and a lease of three.
fn linked() -> Agent {
    let mut agent = Agent::new(AgentRules::default(), Time(0));
    agent.greet(Time(0));
    let welcome =
        ToAgent::Welcome { keep: Vec::new(), heartbeat_ms: 500, silence_ms: 3_000, closed_ms: 1_000 };
    agent.told(welcome, Time(0));
    agent
}

fn prepared(run: RunId) -> Agent {
    let mut agent = linked();
    agent.told(ToAgent::Prepare(launch(run)), Time(10));
    agent.happened(Happened::Prepared { run, master_port: None }, Time(20));
    agent
}

fn running(run: RunId) -> Agent {
    let mut agent = prepared(run);
    agent.told(ToAgent::Go { run, master_port: 1 }, Time(30));
    agent
}

fn starts(agent: &mut Agent, run: RunId) -> bool {
    agent.take_acts().iter().any(|act| matches!(act, Act::Start { run: started, .. } if *started == run))
}

#[test]
fn a_run_that_is_ending_keeps_its_devices_although_it_shall_be_suspended() {
    let mut agent = running(FIRST);
    agent.told(ToAgent::Stop { run: FIRST, grace_ms: 2_000 }, Time(100));
    agent.told(ToAgent::Suspend { run: FIRST }, Time(110));
    agent.told(ToAgent::Prepare(launch(SECOND)), Time(120));
    let acts = agent.take_acts();
    assert!(!acts.contains(&Act::Suspend { run: FIRST }), "{acts:?}");
    let is_refused = |act: &Act| matches!(act, Act::Send(FromAgent::NotPrepared { run: SECOND, .. }));
    assert!(acts.iter().any(is_refused), "{acts:?}");
}

#[test]
fn nothing_sets_a_suspended_run_going_but_an_order_to_resume() {
    let mut agent = running(FIRST);
    agent.told(ToAgent::Suspend { run: FIRST }, Time(100));
    agent.take_acts();
    agent.told(ToAgent::Signal { run: FIRST, signal: 10, to: Audience::All }, Time(110));
    agent.told(ToAgent::Stop { run: FIRST, grace_ms: 2_000 }, Time(120));
    assert_eq!(agent.take_acts(), [Act::Kill { run: FIRST }], "not even to end itself");
}

#[test]
fn an_agent_that_stood_still_past_its_lease_obeys_no_old_order_to_start() {
    let mut agent = prepared(FIRST);
    agent.told(ToAgent::Go { run: FIRST, master_port: 1 }, Time(60_000));
    assert!(!starts(&mut agent, FIRST));
}

#[test]
fn a_refused_connection_does_not_bring_back_a_lease_that_has_ended() {
    let mut agent = running(FIRST);
    agent.take_acts();
    agent.link_lost(LinkLoss::Refused, Time(0) + Span::minutes(1));
    assert_eq!(agent.take_acts(), [Act::Kill { run: FIRST }]);
}
