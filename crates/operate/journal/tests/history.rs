//! Questions about history and usage have the answers that counting by hand gives, and never hold the writer up.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use bedplate_control::record::{HeldShare, JobRow, JobState, Life, Note, Record, RunPhase, RunRow};
use bedplate_control::wire::RunId;
use bedplate_gangs::{JobId, Time};
use bedplate_journal::{JobFilter, Journal, NoteSubject, Reader, UsageBy, UsageFilter};
use proptest::prelude::*;
use support::{Folder, Records, Reference};

fn ids(jobs: &[JobRow]) -> Vec<u64> {
    jobs.iter().map(|job| job.id.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_filter_finds_the_jobs_that_meet_all_its_conditions(
        seed: u64,
        states in proptest::sample::subsequence(JobState::ALL.map(|(_, state)| state).to_vec(), 0..4),
        user in proptest::option::of(0..4), account in proptest::option::of(0..3), name in proptest::option::of(0..4),
        since in proptest::option::of(0u64..10), until in proptest::option::of(0u64..10),
    ) {
        let folder = Folder::new("filter");
        let mut journal = Journal::open(&folder.journal()).unwrap();
        let (mut records, mut reference) = (Records::new(seed), Reference::default());
        let batch: Vec<Record> = (0..150).map(|_| records.record()).collect();
        journal.commit(&batch).unwrap();
        reference.apply(&batch);

        let day = |day: u64| Time(1_790_000_000_000 + day * 86_400_000);
        let filter = JobFilter {
            states,
            user: user.map(|number| format!("user{number}")),
            account: account.map(|number| format!("account{number}")),
            name: name.map(|number| format!("name{number}")),
            since: since.map(day),
            until: until.map(day),
            ..JobFilter::default()
        };
        let expected: Vec<JobRow> =
            reference.jobs.values().rev().filter(|job| meets(job, &filter)).cloned().collect();
        let reader = Reader::open(&folder.journal()).unwrap();
        prop_assert_eq!(&reader.jobs(&filter).unwrap(), &expected);
        prop_assert_eq!(in_pages_of_seven(&reader, &filter), ids(&expected));
    }
}

fn meets(job: &JobRow, filter: &JobFilter) -> bool {
    let same = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
    (filter.states.is_empty() || filter.states.contains(&job.life.state))
        && same(&filter.user, &job.user)
        && same(&filter.account, &job.account)
        && same(&filter.name, &job.name)
        && filter.since.is_none_or(|since| job.life.ended_ms.is_none_or(|ended| ended >= since.0))
        && filter.until.is_none_or(|until| job.submitted < until)
}

fn in_pages_of_seven(reader: &Reader, filter: &JobFilter) -> Vec<u64> {
    let mut found = Vec::new();
    let mut filter = JobFilter { limit: 7, ..filter.clone() };
    loop {
        let page = ids(&reader.jobs(&filter).unwrap());
        let Some(last) = page.last() else { return found };
        filter.before = Some(JobId(*last));
        found.extend(page);
    }
}

#[test]
fn notes_are_found_by_job_and_by_node_newest_of_them_within_the_limit() {
    let folder = Folder::new("notes");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let note = |at_ms, job, node: Option<&str>| {
        Record::Note(Note { at_ms, job, node: node.map(str::to_owned), text: format!("note {at_ms}") })
    };
    journal
        .commit(&[note(1, Some(7), None), note(2, Some(7), Some("n1")), note(3, None, Some("n1"))])
        .unwrap();
    journal.commit(&[note(4, Some(7), None)]).unwrap();
    let reader = Reader::open(&folder.journal()).unwrap();
    let times = |subject, limit| -> Vec<u64> {
        reader.notes(subject, limit).unwrap().iter().map(|note| note.at_ms).collect()
    };
    assert_eq!(times(NoteSubject::Job(JobId(7)), 10), [1, 2, 4]);
    assert_eq!(times(NoteSubject::Job(JobId(7)), 2), [2, 4]);
    assert_eq!(times(NoteSubject::Node("n1"), 10), [2, 3]);
    assert!(times(NoteSubject::Node("n2"), 10).is_empty());
}

#[test]
fn a_reader_amid_an_answer_does_not_stop_the_writer() {
    let folder = Folder::new("reading");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let mut records = Records::new(3);
    journal.commit(&records.batch(50)).unwrap();
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let count = |connection: &rusqlite::Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap()
    };
    connection.execute_batch("BEGIN").unwrap();
    let before = count(&connection);
    for _ in 0..20 {
        journal.commit(&records.batch(50)).unwrap();
    }
    assert_eq!(count(&connection), before, "a question sees one state");
    connection.execute_batch("COMMIT").unwrap();
    assert!(count(&connection) > before);
}

const HOUR: u64 = 3_600_000;
/// 2026-11-14, midnight.
const MIDNIGHT: u64 = 1_794_614_400_000;

/// A run of one node from hour to hour.
#[derive(Debug, Clone)]
struct Worked {
    job: u64,
    gpus: u32,
    from: u64,
    to: Option<u64>,
    energy: Option<u64>,
}

fn job(id: u64) -> Record {
    Record::Submitted(JobRow {
        id: JobId(id),
        array: None,
        user: format!("user{}", id % 3),
        name: "train".into(),
        account: format!("account{}", id % 2),
        submitted: Time(MIDNIGHT),
        key: None,
        text: "".into(),
        life: Life::default(),
    })
}

fn run(number: usize, worked: &Worked) -> Record {
    let share = HeldShare { node: "n1".into(), role: 0, devices: (1 << worked.gpus) - 1, joined: None };
    let run = RunId { job: worked.job, number: number as u32 };
    Record::Run(RunRow {
        phase: if worked.to.is_some() { RunPhase::Ended } else { RunPhase::Running },
        ended: worked.to.map(|to| Time(MIDNIGHT + to * HOUR)),
        energy_joules: worked.energy,
        ..RunRow::begun(run, vec![share], Time(MIDNIGHT + worked.from * HOUR))
    })
}

fn worked() -> impl Strategy<Value = Worked> {
    let energy = proptest::option::of(0u64..1_000_000);
    (1u64..8, 0u32..9, 0u64..90, proptest::option::of(0u64..60), energy).prop_map(
        |(job, gpus, from, lasted, energy)| {
            let to = lasted.map(|lasted| from + lasted);
            Worked { job, gpus, from, to, energy: energy.filter(|_| to.is_some()) }
        },
    )
}

/// GPU-hours by key, counted hour by hour.
fn counted(
    works: &[Worked],
    hours: std::ops::Range<u64>,
    now: u64,
    key: impl Fn(&Worked, u64) -> String,
) -> Vec<(String, u64)> {
    let mut sums = std::collections::BTreeMap::new();
    for hour in hours.start..hours.end {
        for work in works.iter().filter(|work| (work.from..work.to.unwrap_or(now)).contains(&hour)) {
            *sums.entry(key(work, hour)).or_insert(0) += u64::from(work.gpus);
        }
    }
    sums.into_iter().filter(|(_, gpu_hours)| *gpu_hours > 0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn usage_is_what_counting_hour_by_hour_gives(
        works in proptest::collection::vec(worked(), 1..30), since in 0u64..100, lasted in 0u64..60, now in 90u64..160,
    ) {
        let folder = Folder::new("usage");
        let mut journal = Journal::open(&folder.journal()).unwrap();
        journal.commit(&(1..8).map(job).collect::<Vec<_>>()).unwrap();
        let runs: Vec<Record> = works.iter().enumerate().map(|(number, work)| run(number + 1, work)).collect();
        journal.commit(&runs).unwrap();

        let reader = Reader::open(&folder.journal()).unwrap();
        let filter = UsageFilter {
            since: Time(MIDNIGHT + since * HOUR),
            until: Time(MIDNIGHT + (since + lasted) * HOUR),
            now: Time(MIDNIGHT + now * HOUR),
            user: None,
            account: None,
        };
        let found = |by, filter: &UsageFilter| -> Vec<(String, u64)> {
            let rows = reader.usage(by, filter).unwrap().into_iter();
            rows.filter(|row| row.gpu_ms > 0).map(|row| (row.key, (row.gpu_ms / u128::from(HOUR)) as u64)).collect()
        };
        let expected = |key: &dyn Fn(&Worked, u64) -> String| counted(&works, since..since + lasted, now, key);
        prop_assert_eq!(found(UsageBy::User, &filter), expected(&|work, _| format!("user{}", work.job % 3)));
        prop_assert_eq!(found(UsageBy::Account, &filter), expected(&|work, _| format!("account{}", work.job % 2)));
        prop_assert_eq!(found(UsageBy::Job, &filter), expected(&|work, _| work.job.to_string()));
        let day = |hour: u64| format!("2026-11-{}", 14 + hour / 24);
        prop_assert_eq!(found(UsageBy::Day, &filter), expected(&|_, hour| day(hour)));
        let only = UsageFilter { user: Some("user1".into()), ..filter.clone() };
        let whole = found(UsageBy::User, &filter).into_iter().filter(|(user, _)| user == "user1");
        prop_assert_eq!(found(UsageBy::User, &only), whole.collect::<Vec<_>>());
    }

    #[test]
    fn the_views_agree_with_the_answers(works in proptest::collection::vec(worked(), 1..30)) {
        let folder = Folder::new("views");
        let mut journal = Journal::open(&folder.journal()).unwrap();
        journal.commit(&(1..8).map(job).collect::<Vec<_>>()).unwrap();
        // What still runs counts until now, which no test can know.
        let ended = works.iter().filter(|work| work.to.is_some()).enumerate();
        let runs: Vec<Record> = ended.map(|(number, work)| run(number + 1, work)).collect();
        journal.commit(&runs).unwrap();

        let reader = Reader::open(&folder.journal()).unwrap();
        let always =
            UsageFilter { since: Time(0), until: Time::NEVER, now: Time::NEVER, user: None, account: None };
        for (by, view, key) in [
            (UsageBy::User, "usage_by_user", "user"),
            (UsageBy::Account, "usage_by_account", "account"),
            (UsageBy::Day, "usage_by_day", "day"),
        ] {
            let answers = reader.usage(by, &always).unwrap();
            let rows = view_rows(&folder, view, key);
            prop_assert_eq!(rows.len(), answers.len());
            for (row, answer) in rows.iter().zip(&answers) {
                prop_assert_eq!((&row.0, row.1), (&answer.key, answer.runs));
                prop_assert!((row.2 - answer.gpu_hours()).abs() < 1e-6);
                prop_assert!((row.3 - answer.energy_joules / 3.6e6).abs() < 1e-6);
            }
        }
    }
}

/// Key, runs, GPU-hours, kWh.
fn view_rows(folder: &Folder, view: &str, key: &str) -> Vec<(String, u64, f64, f64)> {
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let sql = format!("SELECT {key}, runs, gpu_hours, coalesce(energy_kwh, 0.0) FROM {view} ORDER BY 1");
    let mut statement = connection.prepare(&sql).unwrap();
    let rows =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn devices_can_be_listed_one_by_one() {
    let folder = Folder::new("devices");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    let mut records = Records::new(12);
    let mut run = loop {
        let record = records.record();
        journal.commit(std::slice::from_ref(&record)).unwrap();
        if let Record::Run(run) = record {
            break run;
        }
    };
    run.shares = vec![HeldShare { node: "n1".into(), role: 0, devices: 1 << 63 | 0b101, joined: None }];
    journal.commit(&[Record::Run(run)]).unwrap();
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let mut statement = connection.prepare("SELECT device FROM run_devices ORDER BY device").unwrap();
    let devices: Vec<i64> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(devices, [0, 2, 63]);
}

/// The page shows only questions that the schema can answer.
#[test]
fn every_query_of_the_page_runs() {
    let folder = Folder::new("page");
    let mut journal = Journal::open(&folder.journal()).unwrap();
    journal.commit(&[job(42)]).unwrap();
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let page = include_str!("../../../../docs/journal.md");
    let block = page.split("```sql").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let queries: Vec<&str> = block.split(';').map(str::trim).filter(|query| !query.is_empty()).collect();
    assert!(queries.len() > 5);
    for query in queries {
        let mut statement = connection.prepare(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        let mut rows = statement.query([]).unwrap();
        while rows.next().unwrap().is_some() {}
    }
}

#[test]
fn the_page_names_every_table_column_and_view() {
    let folder = Folder::new("page-tables");
    drop(Journal::open(&folder.journal()).unwrap());
    let connection = rusqlite::Connection::open(folder.journal()).unwrap();
    let page = include_str!("../../../../docs/journal.md");
    let names = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    for view in names("SELECT name FROM sqlite_schema WHERE type = 'view'") {
        assert!(page.contains(&format!("`{view}`")), "{view}");
    }
    for table in names("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'") {
        let line = page.lines().find(|line| line.starts_with(&format!("| `{table}` |")));
        let line = line.unwrap_or_else(|| panic!("the page has no table `{table}`"));
        for column in names(&format!("SELECT name FROM pragma_table_info('{table}')")) {
            assert!(line.contains(&format!("`{column}`")) || table == "clock", "{table}.{column}");
        }
    }
}
