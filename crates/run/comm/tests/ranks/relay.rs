//! A network that delays, loses connections and falls silent: a relay in user space between rank 0 and the others.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bedplate_comm::{CommError, Fault, Reduction, Rendezvous, Transport, World, WorldOptions};
use bedplate_kernels::Device;

use crate::fixture::{SECRET, free_port, options};

const PASSING: u8 = 0;
const SLOW: u8 = 1;
const SILENT: u8 = 2;
const CUT: u8 = 3;

/// Longer than a test lasts: what is noticed, is noticed by other means.
const NEVER: Duration = Duration::from_secs(600);

/// Passes connections on to a port, in the way that its mode says.
struct Relay {
    port: u16,
    mode: Arc<AtomicU8>,
    /// Connections that it has passed on.
    passed: Arc<AtomicUsize>,
}

impl Relay {
    fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mode = Arc::new(AtomicU8::new(PASSING));
        let passed = Arc::new(AtomicUsize::new(0));
        let (shared, count) = (Arc::clone(&mode), Arc::clone(&passed));
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(callee) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                count.fetch_add(1, Ordering::SeqCst);
                for (from, to) in [(&caller, &callee), (&callee, &caller)] {
                    let (from, to, mode) =
                        (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&shared));
                    thread::spawn(move || pass(from, to, &mode));
                }
            }
        });
        Self { port, mode, passed }
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mode: &AtomicU8) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut bytes = [0; 16 << 10];
    loop {
        match mode.load(Ordering::SeqCst) {
            CUT => break,
            SILENT => {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            SLOW => thread::sleep(Duration::from_millis(3)),
            _ => {}
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) if to.write_all(&bytes[..count]).is_err() => break,
            Err(error)
                if !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                break;
            }
            _ => {}
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Two ranks that sum through a relay; the second rank's connections to the first all go through it.
fn through_relay(
    options: [WorldOptions; 2],
    work: impl Fn(&World, &Relay) -> Result<(), CommError> + Sync,
) -> Vec<Option<CommError>> {
    let port = free_port();
    let relay = Relay::to(port);
    let (relay, options, work) = (&relay, &options, &work);
    thread::scope(|scope| {
        let rank = |rank: u32| {
            // Higher ranks call lower ones, so all connections go to rank 0, which says that it is reached at the relay.
            let (port, reached_at) = if rank == 0 { (port, Some(relay.port)) } else { (relay.port, None) };
            let options = WorldOptions { reached_at, ..options[rank as usize].clone() };
            scope.spawn(move || {
                let rendezvous = Rendezvous::on_this_machine(rank, 2, port, SECRET);
                let world = World::join(&rendezvous, &options).unwrap();
                work(&world, relay).err()
            })
        };
        let threads = [rank(0), rank(1)];
        threads.map(|thread| thread.join().unwrap()).into()
    })
}

fn both(deadline: Duration) -> [WorldOptions; 2] {
    [(); 2].map(|()| WorldOptions { deadline, ..options(Transport::Tcp) })
}

fn sums(world: &World, rounds: u32, mut each: impl FnMut(u32)) -> Result<(), CommError> {
    let (device, group) = (Device::cpu(1), world.everyone()?);
    let mut elements = device.zeros::<f32>(30_000);
    for round in 0..rounds {
        each(round);
        device.write(elements.view_mut(), &vec![1.0; 30_000]);
        group.all_reduce(&device, elements.view_mut(), Reduction::Sum)?;
        let mut found = vec![0.0; 30_000];
        device.read(elements.view(), &mut found);
        assert!(found.iter().all(|number| *number == 2.0));
    }
    Ok(())
}

#[test]
fn a_slow_network_delays_calls_and_raises_no_alarm() {
    let errors = through_relay(both(WorldOptions::default().deadline), |world, relay| {
        sums(world, 30, |round| relay.set(if round < 20 { SLOW } else { PASSING }))
    });
    assert!(errors.iter().all(Option::is_none), "{errors:?}");
}

#[test]
fn a_connection_that_is_cut_names_the_other_rank() {
    let errors = through_relay(both(NEVER), |world, relay| {
        sums(world, 100_000, |round| {
            if round == 10 && world.rank() == 0 {
                relay.set(CUT);
            }
        })
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let other = 1 - rank as u32;
        let is_named = matches!(&error, Some(CommError::Fault(Fault::Lost { rank, .. })) if *rank == other);
        assert!(is_named, "{error:?}");
    }
}

#[test]
fn a_network_that_falls_silent_is_noticed_by_the_deadline() {
    let errors = through_relay(both(Duration::from_secs(2)), |world, relay| {
        sums(world, 100_000, |round| {
            if round == 10 && world.rank() == 0 {
                relay.set(SILENT);
            }
        })
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let other = 1 - rank as u32;
        assert!(
            matches!(&error, Some(CommError::Fault(Fault::Silent { rank, .. })) if *rank == other),
            "{error:?}"
        );
    }
}

/// Connections between two ranks that ask for so many streams and for deadlines that differ.
fn connections_with_streams(streams: [u32; 2]) -> usize {
    let deadlines = [Duration::from_secs(1), NEVER];
    let own = |rank: usize| WorldOptions {
        streams: streams[rank],
        deadline: deadlines[rank],
        ..options(Transport::Tcp)
    };
    let passed = AtomicUsize::new(0);
    let errors = through_relay([own(0), own(1)], |world, relay| {
        sums(world, 100_000, |round| {
            if round == 10 {
                // Rank 1 would speak once in a minute by its own deadline, and be given up by rank 0 meanwhile.
                thread::sleep(3 * deadlines[0]);
                assert_eq!(world.fault(), None);
                passed.store(relay.passed.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            if round == 11 && world.rank() == 0 {
                relay.set(SILENT);
            }
        })
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains(&format!("rank {} has been silent for 1 s", 1 - rank)), "rank {rank}: {text}");
    }
    passed.into_inner()
}

#[test]
fn ranks_use_the_streams_and_the_deadline_of_rank_0() {
    let [few, many] = [[1, 4], [3, 1]].map(connections_with_streams);
    assert_eq!(many - few, 2, "two more streams are two more connections: {few} and {many}");
}
