//! Ranks that cannot become a world learn why.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use bedplate_comm::{JoinError, Rendezvous, World, WorldOptions};
use bedplate_testkit::wait_for;

use crate::fixture::{SECRET, free_port, free_port_at, options};

fn quick() -> WorldOptions {
    WorldOptions { join: Duration::from_secs(3), ..options(bedplate_comm::Transport::Automatic) }
}

/// A connection to rank 0 as soon as it listens.
fn connected(port: u16) -> TcpStream {
    wait_for("rank 0 to listen", || TcpStream::connect(("127.0.0.1", port)).ok())
}

/// Joins with what each rank believes; the errors, or nothing for those who joined.
fn join(beliefs: &[Rendezvous], options: &WorldOptions) -> Vec<Option<JoinError>> {
    thread::scope(|scope| {
        let start = |rendezvous| scope.spawn(move || World::join(rendezvous, options).err());
        let threads: Vec<_> = beliefs.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn texts(errors: Vec<Option<JoinError>>) -> Vec<String> {
    errors.into_iter().map(|error| error.map_or("joined".into(), |error| error.to_string())).collect()
}

#[test]
fn a_rank_with_another_secret_is_turned_away_and_the_others_say_so() {
    let port = free_port();
    let own = |rank| Rendezvous::on_this_machine(rank, 3, port, SECRET);
    let stranger = Rendezvous::on_this_machine(2, 3, port, b"something else");
    let found = texts(join(&[own(0), own(1), stranger], &quick()));
    assert!(
        found[2].starts_with("rank 0 at 127.0.0.1:") && found[2].ends_with("has another secret"),
        "{found:?}"
    );
    for text in &found[..2] {
        let expected =
            "after 3 s 1 of 3 ranks had not joined: rank 2 (1 attempts with another secret were turned away)";
        assert_eq!(text, expected);
    }
}

#[test]
fn a_rank_that_joins_twice_is_an_error_on_all() {
    let port = free_port();
    let own = |rank| Rendezvous::on_this_machine(rank, 3, port, SECRET);
    let found = texts(join(&[own(0), own(1), own(1)], &quick()));
    assert!(found.iter().all(|text| text.starts_with("rank 1 joined twice: ")), "{found:?}");
}

#[test]
fn ranks_that_disagree_on_the_size_of_the_world_learn_both() {
    let port = free_port();
    let own = |rank, world| Rendezvous::on_this_machine(rank, world, port, SECRET);
    let found = texts(join(&[own(0, 3), own(1, 2)], &quick()));
    assert!(found.iter().all(|text| text.contains("disagree: worlds of 3 and 2 ranks")), "{found:?}");
}

#[test]
fn a_rank_that_the_world_does_not_have_is_an_error_on_all() {
    let port = free_port();
    let own = |rank| Rendezvous::on_this_machine(rank, 2, port, SECRET);
    let found = texts(join(&[own(0), own(7)], &quick()));
    assert!(found.iter().all(|text| text.contains("a world of 2 ranks has no rank 7")), "{found:?}");
}

#[test]
fn a_port_in_use_and_an_absent_rank_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let found = texts(join(&[Rendezvous::on_this_machine(0, 2, port, SECRET)], &quick()));
    assert_eq!(found[0], format!("rank 0 cannot listen on 127.0.0.1:{port}"));
    drop(taken);
    let found = texts(join(&[Rendezvous::on_this_machine(1, 2, free_port(), SECRET)], &quick()));
    assert!(found[0].starts_with("rank 1 cannot reach rank 0 at 127.0.0.1:"), "{found:?}");
}

#[test]
fn strangers_that_say_nothing_or_nonsense_keep_nobody_from_joining() {
    let port = free_port();
    let options = options(bedplate_comm::Transport::Automatic);
    let strangers = thread::spawn(move || {
        let connect = || connected(port);
        let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
        for nonsense in ["GET / HTTP/1.1\r\n\r\n", "\u{ff}\u{ff}\u{ff}\u{ff}", "\0\0\0\0", "\u{2}\0\0\0{}"] {
            let _ = connect().write_all(nonsense.as_bytes());
        }
        silent
    });
    let late = Rendezvous::on_this_machine(1, 2, port, SECRET);
    let found = thread::scope(|scope| {
        let first = scope.spawn(|| World::join(&Rendezvous::on_this_machine(0, 2, port, SECRET), &options));
        let silent = strangers.join().unwrap();
        let second = World::join(&late, &options);
        drop(silent);
        (first.join().unwrap().map(|world| world.size()).ok(), second.map(|world| world.size()).ok())
    });
    assert_eq!(found, (Some(2), Some(2)));
}

#[test]
fn a_stranger_that_speaks_very_slowly_is_hung_up_on() {
    let port = free_port();
    let options = WorldOptions { join: Duration::from_secs(16), ..quick() };
    thread::scope(|scope| {
        let host = scope.spawn(|| World::join(&Rendezvous::on_this_machine(0, 2, port, SECRET), &options));
        let mut stranger = connected(port);
        // A long message, one byte after the other: each comes soon enough, the whole never.
        let mut sent = 0;
        stranger.write_all(&4000u32.to_le_bytes()).unwrap();
        while stranger.write_all(b" ").is_ok() {
            sent += 1;
            assert!(sent < 28, "the stranger is heard for more than 14 s");
            thread::sleep(Duration::from_millis(500));
        }
        drop(stranger);
        assert!(host.join().unwrap().is_err());
    });
}

#[test]
fn ranks_meet_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("SKIPPED: this machine has no IPv6");
        return;
    }
    let port = free_port_at(IpAddr::from(Ipv6Addr::LOCALHOST));
    for transport in [bedplate_comm::Transport::Automatic, bedplate_comm::Transport::Tcp] {
        let own =
            |rank| Rendezvous { address: "::1".into(), ..Rendezvous::on_this_machine(rank, 2, port, SECRET) };
        assert_eq!(texts(join(&[own(0), own(1)], &options(transport))), ["joined", "joined"]);
    }
}
