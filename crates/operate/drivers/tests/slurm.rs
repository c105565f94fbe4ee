//! A real Slurm passes the suites that every driver passes, by each transport to it, and its faults are told as what they are.

mod suite;
mod working;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bedplate_diag::{Class, Diagnostic};
use bedplate_drivers::{
    Driver, DriverError, JobId, JobQuery, JobState, Slurm, SlurmError, SlurmPlace, UsageBy,
};
use bedplate_job::{Gang, Job, Role, Workload};
use bedplate_peers::{Slurm as RealSlurm, SlurmShape};
use bedplate_testkit::wait_until;

const PATIENCE: Duration = Duration::from_secs(120);

/// One at a time: two would share the cores.
static ONE: Mutex<()> = Mutex::new(());

macro_rules! real {
    ($shape:expr) => {
        match start($shape) {
            Some(slurm) => slurm,
            None => return println!("SKIPPED: a real Slurm: {:?} is not installed", $shape.missing()),
        }
    };
}

/// A Slurm that runs alone; nothing where its packages are missing.
fn start(shape: &SlurmShape) -> Option<Alone> {
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    match RealSlurm::start(shape) {
        Ok(slurm) => {
            std::fs::create_dir_all(folder()).expect("temporary files can be written");
            Some(Alone { slurm, _alone: alone })
        }
        Err(why) => {
            assert!(shape.missing().is_some(), "{why}");
            None
        }
    }
}

/// The lock goes after the Slurm.
struct Alone {
    slurm: RealSlurm,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(folder());
    }
}

impl std::ops::Deref for Alone {
    type Target = RealSlurm;

    fn deref(&self) -> &RealSlurm {
        &self.slurm
    }
}

fn shape() -> SlurmShape {
    SlurmShape { accounting: true, rest: true, requeue_pause_s: 5, ..SlurmShape::default() }
}

fn by_commands(slurm: &RealSlurm) -> SlurmPlace {
    SlurmPlace { configuration: Some(slurm.configuration_path()), ..SlurmPlace::default() }
}

fn by_socket(slurm: &RealSlurm) -> SlurmPlace {
    let rest = Some(format!("unix:{}", slurm.rest_socket().display()));
    SlurmPlace { rest, has_commands: false, ..SlurmPlace::default() }
}

/// By a token on a port, with the commands for what REST cannot do.
fn by_token(slurm: &RealSlurm) -> SlurmPlace {
    let user = Command::new("id").arg("-un").output().expect("every system has it").stdout;
    let token = slurm.token(String::from_utf8_lossy(&user).trim());
    SlurmPlace { rest: Some(slurm.rest_url()), token: Some(token), ..by_commands(slurm) }
}

/// For what cannot answer.
fn impatient(place: SlurmPlace) -> SlurmPlace {
    SlurmPlace { patience: Duration::from_secs(2), ..place }
}

fn driver(place: &SlurmPlace) -> Slurm {
    Slurm::new(place).expect("the place is well formed")
}

/// One Slurm for all transports: starting it takes long.
#[test]
fn a_real_slurm_conforms_by_every_transport() {
    let slurm = real!(&shape());
    for (transport, place) in [
        ("commands", by_commands(&slurm)),
        ("socket", by_socket(&slurm)),
        ("token", by_token(&slurm)),
        ("tables", SlurmPlace { is_plain: true, ..by_commands(&slurm) }),
    ] {
        println!("by {transport}");
        let transports = place.check().expect("a transport works");
        assert!(transports.iter().all(|transport| transport.outcome.is_ok()), "{transports:?}");
        suite::conforms(&driver(&place));
        slurm.clear().expect("all nodes become idle again");
        if transport == "tables" {
            continue;
        }
        let folder = slurm.root().join(format!("work-{transport}"));
        std::fs::create_dir_all(&folder).expect("the folder of a Slurm is its starter's");
        working::conforms(&driver(&place), &folder);
        describes_its_site(&driver(&place));
    }
}

fn describes_its_site(driver: &Slurm) {
    let view = driver.cluster().expect("it tells");
    assert_eq!(
        (view.name.as_str(), &view.rest["nodes"], &view.rest["gpus"]),
        ("story", &8.into(), &64.into())
    );
    assert_eq!(view.rest["partitions"].as_array().map(Vec::len), Some(2));
    assert!(view.rest["qos"].as_array().is_some_and(|qos| qos.iter().any(|qos| qos["name"] == "urgent")));
    let topology = driver.topology().expect("it tells");
    assert_eq!(topology.nodes.len(), 8);
    let first = &topology.nodes[0];
    assert!(first.line.starts_with("NodeName=n1 CPUs=16 RealMemory=4000 Gres=gpu:h100:8"), "{first:?}");
    assert_eq!(topology.offer(4).map(|nodes| nodes.len()), Some(4));
    // No REST server of this version tells of switches.
    assert!(matches!(topology.switches.len(), 0 | 3), "{:?}", topology.switches);
}

fn sleeper(name: &str, seconds: u32) -> Job {
    let role = Role { nodes: 2, gpus_per_node: 8, ..Role::named(Role::ONLY) };
    let mut job = Job::new(name, Workload::command(["/bin/sleep", &seconds.to_string()]), Gang::of(role));
    job.working_directory = Some(folder().display().to_string());
    job.streams.stdout = Some("/dev/null".into());
    job
}

/// Where jobs work; gone with the Slurm of the test.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("bedplate-slurm-work-{}", std::process::id()))
}

fn state(driver: &dyn Driver, id: &JobId) -> Option<JobState> {
    driver.job(id).ok().map(|job| job.summary.life.state)
}

fn is_transient<T: std::fmt::Debug>(outcome: Result<T, DriverError>) -> DriverError {
    let error = outcome.expect_err("it is not there");
    assert_eq!(error.page().class, Class::Transient, "{error:?}");
    assert!(!error.is_refusal(), "{error:?}");
    error
}

/// One Slurm for all faults: starting it takes longest.
#[test]
fn faults_of_slurm_are_told_as_what_they_are() {
    let slurm = real!(&SlurmShape { nodes: 4, forgets_after_s: 2, ..shape() });
    let commands = driver(&by_commands(&slurm));
    let socket = driver(&by_socket(&slurm));
    let both = driver(&by_token(&slurm));
    let running = commands.submit(&sleeper("runs", 600), "runs").expect("it can run here").id;
    wait_until("it runs", || state(&commands, &running) == Some(JobState::Running));
    a_forgotten_job_is_found_in_accounting(&slurm, &[&commands, &socket, &both]);
    a_restarted_controller_is_gone_and_comes_back(&slurm, &running, &[&commands, &socket]);
    a_rest_server_that_is_gone_is_replaced_by_the_commands(&slurm, &running, &socket, &both);
    accounting_that_is_down_is_not_taken_for_an_empty_one(&slurm, &[&commands, &socket, &both]);
    a_silent_controller_does_not_hold_anyone_up(&slurm);
    a_wrong_token_is_refused(&slurm);
}

fn a_forgotten_job_is_found_in_accounting(slurm: &RealSlurm, drivers: &[&Slurm]) {
    let mut job = sleeper("fails", 0);
    // A task that fails ends the others by SIGTERM, and the job would be said to have ended by that: the other one is done first.
    let fails = "trap '' TERM; if [ $SLURM_PROCID != 0 ]; then touch other-is-done; exit 0; fi; \
                 until [ -e other-is-done ]; do sleep 0.1; done; exit 3";
    job.workload = Workload::command(["/bin/sh", "-c", fails]);
    let id = drivers[0].submit(&job, "fails").expect("it can run here").id;
    wait_until("it ends", || state(drivers[0], &id) == Some(JobState::Failed));
    wait_until("slurmctld forgets it", || {
        slurm.ask("squeue", &["-h", "-t", "all", "-j", id.as_str()]).is_empty()
    });
    for driver in drivers {
        let job = driver.job(&id).expect("accounting knows it").summary;
        assert_eq!(
            (job.life.state, job.name.as_str(), job.nodes_asked, job.life.runs),
            (JobState::Failed, "fails", 2, 1)
        );
        // REST of this version tells 0 for every job, which is not believed.
        assert!(matches!(job.life.exit_status, Some(3) | None), "{job:?}");
        let query = JobQuery { with_ended: true, ..JobQuery::default() };
        assert!(driver.jobs(&query).expect("it lists").iter().any(|job| job.id == id));
        let again = driver.submit(&sleeper("fails", 0), "fails").expect("the same job");
        assert_eq!((&again.id, again.is_old), (&id, true), "the key is found in accounting");
        let usage = driver.usage(UsageBy::User, None, None).expect("there is accounting");
        assert!(usage.iter().any(|row| row.runs >= 1), "{usage:?}");
        let trace = driver.trace(0).expect("there is accounting");
        assert!(trace.lines().any(|row| row.starts_with(&format!("{id}|fails|"))), "{trace}");
    }
    assert_eq!(drivers[0].job(&id).expect("accounting knows it").summary.life.exit_status, Some(3));
}

fn a_restarted_controller_is_gone_and_comes_back(slurm: &RealSlurm, running: &JobId, drivers: &[&Slurm]) {
    slurm.stop_controller();
    for place in [by_commands(slurm), by_socket(slurm)] {
        let driver = &driver(&impatient(place));
        let error = is_transient(driver.jobs(&JobQuery::default()));
        assert!(
            matches!(error, DriverError::Slurm(SlurmError::Controller { .. } | SlurmError::TooSlow { .. })),
            "{error:?}"
        );
        is_transient(driver.job(running));
        is_transient(driver.submit(&sleeper("later", 1), "later"));
    }
    slurm.start_controller().expect("it started before");
    for driver in drivers {
        wait_until("the job is there again", || state(*driver, running) == Some(JobState::Running));
        let again = driver.submit(&sleeper("runs", 600), "runs").expect("the same job");
        assert_eq!((&again.id, again.is_old), (running, true));
    }
    slurm
        .wait_until("nodes are heard again", PATIENCE, || {
            slurm.ask("sinfo", &["-h", "-t", "idle", "-p", "main", "-o", "%D"]) == "2"
        })
        .expect("they were");
}

fn a_rest_server_that_is_gone_is_replaced_by_the_commands(
    slurm: &RealSlurm,
    running: &JobId,
    socket: &Slurm,
    both: &Slurm,
) {
    slurm.stop_rest();
    let error = is_transient(socket.job(running));
    assert!(matches!(error, DriverError::Slurm(SlurmError::Rest { .. })), "{error:?}");
    both.remarks();
    assert_eq!(state(both, running), Some(JobState::Running));
    let remarks = both.remarks();
    assert!(remarks.len() == 1 && remarks[0].contains("does not answer"), "{remarks:?}");
    slurm.start_rest().expect("it started before");
    assert_eq!(state(socket, running), Some(JobState::Running));
    assert_eq!(both.job(running).map(|_| both.remarks()).expect("it is back"), Vec::<String>::new());
}

fn accounting_that_is_down_is_not_taken_for_an_empty_one(slurm: &RealSlurm, drivers: &[&Slurm]) {
    slurm.stop_accounting();
    for driver in drivers {
        driver.remarks();
        let jobs =
            driver.jobs(&JobQuery { with_ended: true, ..JobQuery::default() }).expect("slurmctld answers");
        assert!(jobs.iter().any(|job| job.name == "runs"));
        let remarks = driver.remarks().join("; ");
        assert!(remarks.contains("accounting does not answer"), "{remarks}");
        let error = is_transient(driver.job(&"4711".into()));
        assert!(matches!(error, DriverError::Slurm(SlurmError::Accounting { .. })), "{error:?}");
        is_transient(driver.usage(UsageBy::User, None, None));
        assert!(driver.node(&"n1".into()).is_ok(), "the rest works without it");
    }
    slurm.start_accounting().expect("it started before");
    for driver in drivers {
        assert!(
            driver.job(&"4711".into()).is_err_and(|error| error.is_refusal()),
            "now it is known not to be"
        );
    }
}

fn a_silent_controller_does_not_hold_anyone_up(slurm: &RealSlurm) {
    let commands = driver(&impatient(by_commands(slurm)));
    let pid = std::fs::read_to_string(slurm.root().join("slurmctld.pid")).expect("it runs");
    let signal = |name: &str| {
        Command::new("kill").args(["-s", name, pid.trim()]).status().expect("every system has it")
    };
    signal("STOP");
    let began = Instant::now();
    let error = is_transient(commands.jobs(&JobQuery::default()));
    signal("CONT");
    assert_eq!(error.page().code, "slurm/too-slow", "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "the deadline is 2 s");
    wait_until("it answers again", || commands.jobs(&JobQuery::default()).is_ok());
}

fn a_wrong_token_is_refused(slurm: &RealSlurm) {
    let place = SlurmPlace { token: Some("a.b.c".into()), has_commands: false, ..by_token(slurm) };
    let error = driver(&place).jobs(&JobQuery::default()).expect_err("nobody made this token");
    // This version of Slurm does not say that it is the token; we say that it may be.
    let is_told = matches!(error, DriverError::NotAllowed { .. }) || error.to_string().contains("token");
    assert!(is_told, "{error:?}");
    assert!(!format!("{error:?} {error}").contains("a.b.c"), "tokens are not shown");
}

#[test]
fn a_slurm_without_accounting_says_so() {
    let slurm = real!(&SlurmShape { nodes: 1, accounting: false, ..shape() });
    for place in [by_commands(&slurm), by_socket(&slurm)] {
        let driver = driver(&place);
        let error = driver.job(&"4711".into()).expect_err("there is none");
        assert!(error.is_refusal() && error.to_string().contains("keeps no accounting"), "{error:?}");
        assert!(driver.usage(UsageBy::User, None, None).is_err_and(|error| error.is_refusal()));
        let query = JobQuery { with_ended: true, ..JobQuery::default() };
        assert!(driver.jobs(&query).expect("slurmctld answers").is_empty());
        assert!(driver.remarks().is_empty(), "nothing is wrong");
    }
}

/// Prints how long it takes; the figure is for people.
#[test]
fn a_thousand_jobs_are_listed() {
    let slurm = real!(&SlurmShape { nodes: 2, accounting: false, ..shape() });
    let socket = driver(&by_socket(&slurm));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let socket = &socket;
            scope.spawn(move || {
                for number in 0..250 {
                    let mut job = sleeper("held", 1);
                    job.policy.is_held = true;
                    let key = format!("{client} {number}");
                    // A server with much to do may close a connection; the same key is the same job.
                    let lost = socket.submit_new(&job, &key).err();
                    lost.map(|_| socket.submit(&job, &key).expect("it can run here"));
                }
            });
        }
    });
    println!("1000 jobs submitted by REST, {:.0} a second", 1000.0 / began.elapsed().as_secs_f64());
    for (transport, place) in [
        ("commands", by_commands(&slurm)),
        ("tables", SlurmPlace { is_plain: true, ..by_commands(&slurm) }),
        ("socket", by_socket(&slurm)),
        ("token", by_token(&slurm)),
    ] {
        let driver = driver(&place);
        let began = Instant::now();
        let count = driver.jobs(&JobQuery::default()).expect("it lists").len();
        println!("{count} jobs by {transport} in {:.0} ms", began.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(count, 1000, "{transport}");
    }
}
