//! `bedplate top`: the whole cluster on one screen, live.

mod frame;
mod screen;

use std::io;
use std::time::Instant;

use bedplate_drivers::{Driver, JobQuery};
use bedplate_terminal::present::now_ms;
use bedplate_terminal::{CliError, Console};
use serde_json::json;

use crate::connection::Connection;
use frame::{Order, Picture, View};
use screen::{Key, Screen};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate top
  bedplate top --once          one picture, for a pipe

Keys: q ends, j and k (or the arrows) go through the jobs, s changes their
order.")]
pub(crate) struct Arguments {
    /// Print one picture and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What a pipe gets, and a terminal that does not tell its size.
const SIZE: (usize, usize) = (80, 24);

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let driver = arguments.connection.driver()?;
    let picture = look(&*driver)?;
    if console.is_json() {
        return console
            .json(&json!({ "cluster": picture.name, "nodes": picture.nodes, "jobs": picture.jobs }));
    }
    let screen = if arguments.once { None } else { Screen::take() };
    let Some(screen) = screen else {
        let size = (console.width().unwrap_or(SIZE.0), SIZE.1);
        return console.text(&frame::draw(&picture, &View::default(), size, now_ms()));
    };
    watch(&*driver, picture, &screen).map_err(|error| match error {
        Trouble::Failed(error) => error,
        Trouble::Output(source) => CliError::from_output(source),
    })
}

enum Trouble {
    Failed(CliError),
    Output(io::Error),
}

fn watch(driver: &dyn Driver, mut picture: Picture, screen: &Screen) -> Result<(), Trouble> {
    let mut view = View::default();
    let mut looked = Instant::now();
    let refresh = driver.pause();
    loop {
        let text = frame::draw(&picture, &view, screen.size().unwrap_or(SIZE), now_ms());
        screen.show(&text).map_err(Trouble::Output)?;
        match screen.key(refresh.saturating_sub(looked.elapsed())) {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Down) => view.first = (view.first + 1).min(picture.jobs.len().saturating_sub(1)),
            Some(Key::Up) => view.first = view.first.saturating_sub(1),
            Some(Key::Sort) => view.order = view.order.next(),
            None => {}
        }
        if looked.elapsed() >= refresh {
            picture = look(driver).map_err(Trouble::Failed)?;
            looked = Instant::now();
        }
    }
}

fn look(driver: &dyn Driver) -> Result<Picture, CliError> {
    let query = JobQuery { limit: Some(1000), ..JobQuery::default() };
    Ok(Picture { name: driver.cluster()?.name, nodes: driver.nodes()?, jobs: driver.jobs(&query)? })
}

impl Default for View {
    fn default() -> Self {
        Self { first: 0, order: Order::State }
    }
}
