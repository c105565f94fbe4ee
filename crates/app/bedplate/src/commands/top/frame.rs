//! One picture of a cluster: nodes with their devices, jobs with their progress and their reasons.

use bedplate_drivers::{JobState, JobSummary, NodeState, NodeSummary};
use bedplate_finding::Action;
use bedplate_terminal::present::{bar, clock, moment};

use crate::job_text::{shortened, state_text, step_text, where_or_problem, where_or_why};

/// What there is to see.
pub(super) struct Picture {
    pub(super) name: String,
    pub(super) nodes: Vec<NodeSummary>,
    pub(super) jobs: Vec<JobSummary>,
}

/// How the user looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// The first job shown.
    pub(super) first: usize,
    pub(super) order: Order,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Running ones first.
    State,
    /// Largest first.
    Gpus,
    User,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Order::State => Order::Gpus,
            Order::Gpus => Order::User,
            Order::User => Order::State,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::State => "state",
            Order::Gpus => "GPUs",
            Order::User => "user",
        }
    }
}

/// The picture in this many columns and rows; it is never larger.
pub(super) fn draw(picture: &Picture, view: &View, (width, height): (usize, usize), now_ms: u64) -> String {
    let mut lines = vec![header(picture, now_ms)];
    lines.extend(node_lines(&picture.nodes, width, (height / 2).saturating_sub(2)));
    lines.push(format!(
        "{:>6} {:<14} {:<8} {:<9} {:>5}  PROGRESS, OR WHY IT WAITS",
        "JOB", "NAME", "USER", "STATE", "GPUS"
    ));
    let room = height.saturating_sub(lines.len() + 1);
    let jobs = ordered(&picture.jobs, view.order);
    let shown = jobs.iter().skip(view.first).take(room);
    lines.extend(shown.map(|job| job_line(job, width, now_ms)));
    if jobs.is_empty() {
        lines.push("       no jobs wait or run".to_owned());
    }
    lines.truncate(height.saturating_sub(1));
    lines.push(format!("q ends  j/k scroll  s order: {}", view.order.name()));
    let cut = lines.iter().map(|line| line.chars().take(width).collect::<String>().trim_end().to_owned());
    cut.collect::<Vec<_>>().join("\n") + "\n"
}

fn header(picture: &Picture, now_ms: u64) -> String {
    let count = |state: JobState| picture.jobs.iter().filter(|job| job.life.state == state).count();
    let gpus: u32 = picture.nodes.iter().map(|node| node.gpus).sum();
    let linked: Vec<&NodeSummary> = picture.nodes.iter().filter(|node| node.is_linked).collect();
    let used: u32 = linked.iter().map(|node| node.gpus.saturating_sub(node.gpus_free)).sum();
    format!(
        "{}  {} UTC  nodes {}/{}  GPUs {used}/{gpus} used  {} running  {} waiting",
        shortened(&picture.name, 20),
        &moment(now_ms)[11..],
        linked.len(),
        picture.nodes.len(),
        count(JobState::Running),
        count(JobState::Waiting),
    )
}

/// Several nodes a line where they fit; the rest is counted.
fn node_lines(nodes: &[NodeSummary], width: usize, most: usize) -> Vec<String> {
    let cells: Vec<String> = nodes.iter().map(node_cell).collect();
    let cell_width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(1) + 2;
    let per_line = (width / cell_width).max(1);
    let pad = |cell: &String| format!("{cell:<cell_width$}");
    let mut lines: Vec<String> =
        cells.chunks(per_line).map(|row| row.iter().map(pad).collect::<String>()).collect();
    if lines.len() > most {
        lines.truncate(most.saturating_sub(1));
        lines.push(format!("and {} more nodes", nodes.len() - lines.len() * per_line));
    }
    lines
}

/// A node with a mark for each device: `#` used, `.` free, `x` out of service; and `!` where it found something.
fn node_cell(node: &NodeSummary) -> String {
    let is_out = !node.is_linked || matches!(node.state, NodeState::Down | NodeState::Drained);
    let used = node.gpus.saturating_sub(node.gpus_free) as usize;
    let map = match is_out {
        true => "x".repeat(node.gpus as usize),
        false => "#".repeat(used) + &".".repeat(node.gpus as usize - used),
    };
    // Findings that matter to people: one mark, whatever their number.
    let is_told = node.findings.iter().any(|open| open.finding.action >= Action::Alert);
    let mark = if is_told { " !" } else { "" };
    format!("{} [{map}] {}{mark}", node.name, node.state.name())
}

fn ordered(jobs: &[JobSummary], order: Order) -> Vec<&JobSummary> {
    let mut jobs: Vec<&JobSummary> = jobs.iter().collect();
    match order {
        Order::State => jobs.sort_by_key(|job| job.life.state == JobState::Waiting),
        Order::Gpus => jobs.sort_by_key(|job| std::cmp::Reverse(job.gpus_asked)),
        Order::User => jobs.sort_by(|a, b| a.user.cmp(&b.user)),
    }
    jobs
}

fn job_line(job: &JobSummary, width: usize, now_ms: u64) -> String {
    let start = format!(
        "{:>6} {:<14} {:<8} {:<9} {:>5}  ",
        shortened(&job.label, 6),
        shortened(&job.name, 14),
        shortened(&job.user, 8),
        shortened(&state_text(job), 9),
        job.gpus_asked
    );
    let room = width.saturating_sub(start.chars().count());
    format!("{start}{}", shortened(&progress(job, now_ms), room.max(2)))
}

/// How much of its time a running job has used; why another one is where it is.
fn progress(job: &JobSummary, now_ms: u64) -> String {
    let (Some(started), Some(ends)) = (job.life.started_ms, job.ends_ms) else {
        return where_or_why(job, now_ms);
    };
    let used = now_ms.saturating_sub(started);
    let limit = ends.saturating_sub(started).max(1);
    let step = job.pace.and_then(|pace| pace.step);
    let step = step.or(job.life.checkpoint.as_ref().map(|checkpoint| checkpoint.step));
    let step = step.map(|step| format!(" step {step}"));
    let pace = Some(step_text(job)).filter(|pace| !pace.is_empty());
    let pace = pace.map(|pace| format!(" ({pace})"));
    let runs = if job.life.runs > 1 { format!(" run {}", job.life.runs) } else { String::new() };
    let bar = bar(used as f64 / limit as f64, 10);
    format!(
        "{bar} {}{}{}{runs} {}",
        clock(used),
        step.unwrap_or_default(),
        pace.unwrap_or_default(),
        where_or_problem(job, now_ms)
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::job_text::canned;

    fn node(name: &str, state: NodeState, free: u32, is_linked: bool) -> NodeSummary {
        NodeSummary {
            name: name.into(),
            state,
            reason: None,
            address: String::new(),
            host: bedplate_drivers::HostView::default(),
            kind: "p5.48xlarge".into(),
            gpus: 8,
            gpus_free: free,
            cpus: 192,
            memory_mib: 0,
            jobs: Vec::new(),
            is_linked,
            heard_ms: None,
            losses: 0,
            findings: Vec::new(),
        }
    }

    fn picture() -> Picture {
        let nodes = vec![
            node("n1", NodeState::Allocated, 0, true),
            node("n2", NodeState::Allocated, 4, true),
            node("n3", NodeState::Idle, 8, true),
            node("n4", NodeState::Down, 8, false),
        ];
        Picture { name: "p5.48xlarge:4".into(), nodes, jobs: canned() }
    }

    #[test]
    fn a_picture_fits_a_small_terminal() {
        let text = draw(&picture(), &View::default(), (80, 24), 10_000_000);
        expect![[r#"
            p5.48xlarge:4  02:46:40 UTC  nodes 3/4  GPUs 12/32 used  1 running  3 waiting
            n1 [########] allocated  n2 [####....] allocated  n3 [........] idle
            n4 [xxxxxxxx] down
               JOB NAME           USER     STATE      GPUS  PROGRESS, OR WHY IT WAITS
                 1 pretrain       ada      running      16  █░░░░░░░░░ 16:40 step 120 (520 …
                 5 pretrain       ada      failed       16  exit code 3
                 6 pretrain       ada      node lost    16  n1 was lost
                 2 a name that i… ada      waiting      16  not enough free nodes; starts w…
                 3 pretrain       grace    held         16  held
               4_7 pretrain       ada      waiting       0  waits for its turn
            q ends  j/k scroll  s order: state
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn a_picture_is_never_larger_than_its_screen() {
        let mut picture = picture();
        for at in 0..300 {
            picture.nodes.push(node(&format!("m{at}"), NodeState::Idle, 8, true));
        }
        for size in [(80, 24), (40, 10), (200, 50), (1, 1)] {
            let text = draw(&picture, &View { first: 2, order: Order::Gpus }, size, 10_000_000);
            assert!(text.lines().count() <= size.1.max(1), "{size:?}\n{text}");
            assert!(text.lines().all(|line| line.chars().count() <= size.0), "{size:?}\n{text}");
        }
        assert!(draw(&picture, &View::default(), (80, 24), 0).contains("more nodes"));
    }
}
