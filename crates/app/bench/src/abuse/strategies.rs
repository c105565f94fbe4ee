//! The ways in which the user abuses the cluster. Each goes on until the time is over.

use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::Duration;

use bedplate_drivers::{ClusterPlace, Driver, JobFormat, JobId, JobOrder, JobQuery, Local, UsageBy, Watched};

use super::mallory::{Client, Mallory};

pub(super) struct Strategy {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) act: fn(&Mallory),
}

/// Tasks of the largest array that may be submitted.
const TASKS: u32 = 10_000;
/// As many requests as a user may have under way.
const MANY: u64 = 64;

pub(super) const STRATEGIES: [Strategy; 20] = [
    Strategy { name: "submissions", about: "jobs are submitted without pause", act: submissions },
    Strategy { name: "arrays", about: "arrays of 10,000 tasks are submitted without pause", act: arrays },
    Strategy {
        name: "withdrawals",
        about: "ten held arrays of 10,000 tasks are cancelled",
        act: withdrawals,
    },
    Strategy { name: "cancels", about: "the tasks of an array are cancelled one by one", act: cancels },
    Strategy { name: "holds", about: "an array is held and released in turn", act: holds },
    Strategy { name: "requeues", about: "running jobs are requeued without pause", act: requeues },
    Strategy { name: "epilogs", about: "two arrays of jobs whose epilogs fail", act: epilogs },
    Strategy { name: "retries", about: "an array of jobs that fail and come back", act: retries },
    Strategy { name: "starts", about: "thousands of jobs that end at once", act: starts },
    Strategy { name: "dependencies", about: "jobs that await two whole arrays", act: dependencies },
    Strategy { name: "explain", about: "64 clients ask why jobs wait", act: explain },
    Strategy { name: "lists", about: "lists that filters make empty, history, sums", act: lists },
    Strategy { name: "watches", about: "watchers of everything that read nothing", act: watches },
    Strategy { name: "connections", about: "connections that say nothing", act: connections },
    Strategy { name: "tokens", about: "wrong tokens, again and again", act: tokens },
    Strategy { name: "bodies", about: "job files of a megabyte", act: bodies },
    Strategy { name: "reports", about: "jobs that report without pause", act: reports },
    Strategy { name: "logs", about: "jobs that write without end, and readers of it", act: logs },
    Strategy { name: "steps", about: "scripts that start steps without pause", act: steps },
    Strategy { name: "forks", about: "jobs that fork without end", act: forks },
];

/// A job file of one task, with more keys.
pub(super) fn job(name: &str, command: &[&str], more: &str) -> String {
    format!(
        "name = \"{name}\"\ncommand = {command:?}\nworking_directory = \"/\"\ninherit_environment = \"none\"\n\
         stdout = \"/dev/null\"\ntime_limit = \"10min\"\ngrace = \"1s\"\n{more}"
    )
}

fn shell(name: &str, script: &str, more: &str) -> String {
    job(name, &["/bin/sh", "-c", script], more)
}

fn sleeper(more: &str) -> String {
    job("sleeper", &["/bin/sleep", "600"], more)
}

fn array(tasks: u32) -> String {
    format!("array = \"0-{}\"\n", tasks - 1)
}

fn held_array() -> String {
    format!("hold = true\n{}", array(TASKS))
}

/// Takes all places first, so that the rest waits.
fn fill(client: &Client<'_>) {
    client.submit(&sleeper(&array(16)));
}

fn submissions(mallory: &Mallory) {
    mallory.again(16, |client, _| drop(client.submit(&sleeper(""))));
}

fn arrays(mallory: &Mallory) {
    mallory.again(4, |client, _| drop(client.submit(&sleeper(&array(TASKS)))));
}

fn withdrawals(mallory: &Mallory) {
    mallory.again(1, |client, _| {
        let held: Vec<JobId> = (0..10).filter_map(|_| client.submit(&sleeper(&held_array()))).collect();
        held.iter().for_each(|job| client.order(job, JobOrder::Cancel));
    });
}

fn cancels(mallory: &Mallory) {
    fill(&mallory.client());
    mallory.again(16, |client, _| {
        let Some(JobId(array)) = client.submit(&sleeper(&array(500))) else { return };
        let tasks = (0..500).map(|index| JobId(format!("{array}_{index}")));
        tasks.take_while(|_| !mallory.is_over()).for_each(|task| client.order(&task, JobOrder::Cancel));
    });
}

fn holds(mallory: &Mallory) {
    fill(&mallory.client());
    mallory.again(4, |client, _| {
        let Some(array) = client.submit(&sleeper(&array(TASKS))) else { return };
        while !mallory.is_over() {
            client.order(&array, JobOrder::Hold);
            client.order(&array, JobOrder::Release);
        }
    });
}

fn requeues(mallory: &Mallory) {
    mallory.again(8, |client, _| {
        let Some(job) = client.submit(&sleeper("")) else { return };
        while !mallory.is_over() {
            client.order(&job, JobOrder::Requeue);
        }
    });
}

fn epilogs(mallory: &Mallory) {
    let job = job("epilog", &["/bin/true"], &format!("epilog = [\"/bin/false\"]\n{}", array(TASKS)));
    let client = mallory.client();
    (0..2).for_each(|_| drop(client.submit(&job)));
    while !mallory.is_over() {
        mallory.wait();
    }
}

fn retries(mallory: &Mallory) {
    let job = job("fails", &["/bin/false"], &format!("retries = 1000\n{}", array(TASKS)));
    mallory.client().submit(&job);
    while !mallory.is_over() {
        mallory.wait();
    }
}

fn starts(mallory: &Mallory) {
    mallory.again(8, |client, _| drop(client.submit(&job("no-op", &["/bin/true"], ""))));
}

fn dependencies(mallory: &Mallory) {
    let client = mallory.client();
    let awaited: Vec<JobId> = (0..2).filter_map(|_| client.submit(&sleeper(&held_array()))).collect();
    let names: Vec<&str> = awaited.iter().map(JobId::as_str).collect();
    let waits = sleeper(&format!("dependencies = [\"afterany:{}\"]\n", names.join(":")));
    mallory.again(8, |client, _| drop(client.submit(&waits)));
}

fn explain(mallory: &Mallory) {
    let client = mallory.client();
    fill(&client);
    let Some(JobId(array)) = client.submit(&sleeper(&array(TASKS))) else { return };
    mallory.again(MANY, |client, number| {
        let task = JobId(format!("{array}_{}", u64::from(TASKS) - 1 - number));
        client.ask(|driver| driver.explain(&task));
    });
}

fn lists(mallory: &Mallory) {
    let client = mallory.client();
    fill(&client);
    (0..5).for_each(|_| drop(client.submit(&sleeper(&array(TASKS)))));
    mallory.again(MANY / 2, |client, number| {
        let nothing = JobQuery { name: Some("nothing".into()), ..JobQuery::default() };
        match number % 3 {
            0 => drop(client.ask(|driver| driver.jobs(&nothing))),
            1 => drop(client.ask(|driver| driver.jobs(&JobQuery { with_ended: true, ..nothing }))),
            _ => drop(client.ask(|driver| driver.usage(UsageBy::Job, None, None))),
        }
    });
}

fn watches(mallory: &Mallory) {
    std::thread::scope(|scope| {
        for _ in 0..MANY - 8 {
            scope.spawn(|| {
                while !mallory.is_over() {
                    let mut see = |_| {
                        mallory.wait();
                        if mallory.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    };
                    mallory.client().ask(|driver| driver.watch(&Watched::default(), &mut see));
                }
            });
        }
        // So that there is something to see.
        starts(mallory);
    });
}

fn connections(mallory: &Mallory) {
    let mut open = Vec::new();
    while !mallory.is_over() {
        let connection = TcpStream::connect(&mallory.place.address);
        mallory.count(&connection);
        open.extend(connection.ok());
        if open.len() >= 10_000 {
            open.clear();
        }
        if open.len() % 1_000 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn tokens(mallory: &Mallory) {
    let wrong = ClusterPlace { token: format!("bp_{}", "0".repeat(64)), ..mallory.place.clone() };
    mallory.again(16, |client, _| {
        let stranger = Local::new(wrong.clone()).with_patience(Duration::ZERO);
        while !mallory.is_over() {
            client.ask(|_| stranger.nodes());
        }
    });
}

fn bodies(mallory: &Mallory) {
    let variables: String = (0..20_000).map(|number| format!("V{number} = \"{number:030}\"\n")).collect();
    let large = sleeper(&format!("hold = true\n[environment]\n{variables}"));
    let script = format!("#!/bin/sh\n{}", "#SBATCH --comment=none\n".repeat(40_000));
    mallory.again(8, |client, number| match number % 2 {
        0 => drop(client.submit(&large)),
        _ => drop(client.ask(|driver| driver.submit_text(JobFormat::Script, &script, "the same key"))),
    });
}

/// Runs on all places until the time is over.
fn run_everywhere(mallory: &Mallory, job: &str) {
    mallory.client().submit(job);
    while !mallory.is_over() {
        mallory.wait();
    }
}

fn reports(mallory: &Mallory) {
    let script =
        "while :; do n=$((n+1)); echo \"progress $n\"; echo \"checkpoint $n /$n\"; done >> $BEDPLATE_REPORT";
    run_everywhere(mallory, &shell("reports", script, &array(8)));
}

fn logs(mallory: &Mallory) {
    let job = shell("logs", "yes", &array(8)).replace("stdout = \"/dev/null\"\n", "");
    let Some(job) = mallory.client().submit(&job) else { return };
    mallory.again(8, |client, _| {
        let query = bedplate_drivers::LogQuery { follow: true, ..Default::default() };
        let mut seen = Seen { mallory };
        client.ask(|driver| driver.logs(&job, &query, &mut seen));
        mallory.wait();
    });
}

/// Reads until the time is over.
struct Seen<'a> {
    mallory: &'a Mallory,
}

impl std::io::Write for Seen<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.mallory.is_over() { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn steps(mallory: &Mallory) {
    let script = "#!/bin/sh\nwhile :; do srun /bin/true; done\n";
    let job =
        sleeper(&array(8)).replace("command = [\"/bin/sleep\", \"600\"]", &format!("script = {script:?}"));
    run_everywhere(mallory, &job);
}

fn forks(mallory: &Mallory) {
    run_everywhere(mallory, &shell("forks", "f() { f | f & }; f; sleep 600", &array(8)));
}
