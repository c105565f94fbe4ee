//! `Local` against a real daemon passes the suite that every driver passes.

#[path = "../../../../operate/drivers/tests/suite/mod.rs"]
mod suite;

use bedplate_control::wire::{FromAgent, NodeEnd, ToAgent};
use bedplate_drivers::{ClusterPlace, Local};

use crate::agents::{Agent, token};
use crate::support::Daemon;

/// An agent that starts what it is told to, and ends it when it is told to.
fn play(mut agent: Agent) {
    while let Some(message) = agent.hear() {
        match message {
            ToAgent::Prepare(launch) => {
                agent.say(&FromAgent::Prepared { run: launch.run, master_port: Some(29500) });
            }
            ToAgent::Stop { run, .. } => {
                let end = NodeEnd { was_stopped: true, ..NodeEnd::default() };
                agent.say(&FromAgent::Released { run, end });
            }
            ToAgent::ReadLog { request, offset, .. } => {
                let bytes = b"hello\n"[offset.min(6) as usize..].to_vec();
                agent.say(&FromAgent::Chunk { request, bytes, next_offset: 6, is_open: false, error: None });
            }
            _ => {}
        }
    }
}

#[test]
fn local_conforms() {
    let daemon = Daemon::start_with(|options| options.rules.silence = bedplate_gangs::Span::seconds(600));
    let agent = Agent::join(daemon.address, &token(&daemon, "n1"), "n1", Vec::new());
    std::thread::spawn(move || play(agent));
    let token = std::fs::read_to_string(daemon.folder.path().join("admin.token")).unwrap();
    let place = ClusterPlace {
        address: daemon.address.to_string(),
        fingerprint: None,
        token: token.trim().to_owned(),
    };
    suite::conforms(&Local::new(place));
}
