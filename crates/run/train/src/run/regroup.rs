//! How a run goes on when ranks are lost or come: the next world, and who takes part in it.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bedplate_comm::{CommError, Fault, Gap, JoinError, Numbering, World};
use bedplate_kernels::CudaError;
use bedplate_layout::Layout;

use super::shapes::Shapes;
use super::{Observer, Past, Run, RunOptions, Wish};
use crate::optimizer::Steps;
use crate::ranks::RunRanks;
use crate::trained::Trained;
use crate::{Membership, TrainConfig, TrainError};

/// How long the ranks that are left have to meet.
const MEETING: Duration = Duration::from_secs(60);
/// How long those that wait for a place have to take it, where the others can go on without them.
const PROMPT: Duration = Duration::from_secs(10);

impl<E: Trained> Run<'_, E> {
    /// What the ranks want before the next step: any may ask to stop, the first one knows who waits to join.
    pub(super) fn agree(&self) -> Result<Wish, TrainError> {
        let is_stopped = self.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        let ranks = self.trainer.ranks();
        let grows = ranks.is_first() && self.can_grow();
        let mut wishes = [f64::from(u8::from(is_stopped)), f64::from(u8::from(grows))];
        ranks.sum_over_all(&self.trainer.device, &mut wishes)?;
        Ok(match wishes {
            [stops, _] if stops > 0.0 => Wish::Stop,
            [_, grows] if grows > 0.0 => Wish::Grow,
            _ => Wish::GoOn,
        })
    }

    /// Whether those that wait make more whole replicas, up to the layout that was asked for.
    fn can_grow(&self) -> bool {
        let count = self.trainer.ranks().count() as u32;
        let Some(membership) = self.options.membership.as_ref().filter(|_| count < self.shapes.asked())
        else {
            return false;
        };
        self.shapes
            .largest(count + membership.waiting())
            .is_some_and(|layout| layout.world() > u64::from(count))
    }
}

/// Whether the ranks that are left can make another world after an error in this one.
pub(super) fn is_survived(error: &TrainError, world: &World, options: &RunOptions<'_>) -> bool {
    let TrainError::Ranks(error) = error else { return false };
    let own = if let CommError::Fault(fault) = error { Some(fault.clone()) } else { None };
    let is_about_ranks = |fault: Fault| fault.lost_rank().is_some() || matches!(fault, Fault::Rebuilt { .. });
    options.membership.is_some() && world.fault().or(own).is_some_and(is_about_ranks)
}

/// Ends the work of the other ranks with the reason of this one, and the patience of those that wait for a place.
pub(super) fn tell_others(world: &World, error: &TrainError, options: &RunOptions<'_>) {
    let is_known = matches!(
        error,
        TrainError::Ranks(_)
            | TrainError::Elsewhere { .. }
            // All ranks find these together.
            | TrainError::NotFinite { .. }
            | TrainError::StateLost { .. }
            | TrainError::Layout { .. }
    );
    if let TrainError::Device(CudaError::Fault(fault)) = error {
        // The others may go on without this rank, as they do where a rank's process is lost.
        return world.lose_device(&fault.to_string());
    }
    if !is_known {
        world.revoke(&error.to_string());
    }
    if let Some(membership) = options.membership.as_ref().filter(|_| world.rank() == 0) {
        membership.end();
    }
}

/// What became of the ranks that met again.
pub(super) enum Next {
    World(World),
    /// There was no place for this process until the end of the run.
    NotNeeded,
}

/// How the next world is made.
pub(super) struct Regrouping<'a> {
    pub(super) config: &'a TrainConfig,
    pub(super) options: &'a RunOptions<'a>,
    pub(super) shapes: &'a Shapes<'a>,
}

impl Regrouping<'_> {
    /// Makes the next world with the ranks that are left and those that wait. More may be lost meanwhile: then it is done again.
    pub(super) fn next(
        &self,
        mut world: World,
        past: &mut Past,
        observer: &mut dyn Observer,
    ) -> Result<Next, TrainError> {
        let membership = self.options.membership.as_ref().expect("only runs that go on regroup");
        loop {
            // A rank that stood still for too long finds that the others have gone on without it.
            if membership.has_passed(world.epoch()) {
                return self.wait_for_a_place(world, past, membership);
            }
            let newcomer = world.as_newcomer();
            let place = Waiting::new(self, &world, membership, observer);
            let at_most = MEETING + self.patience();
            world = match world.rebuild_with(&|gap| place.numbering(gap), at_most) {
                Err(JoinError::LeftOut { .. }) => return self.rejoin(newcomer, past, membership),
                made => made?,
            };
            let (ranks, fits) = (world.size(), self.shapes.on(world.size()));
            if fits.is_some() {
                return Ok(Next::World(world));
            }
            let Some(kept) = self.shapes.largest(ranks).map(|layout: Layout| layout.world() as u32) else {
                return Err(self.too_few(&world, membership));
            };
            match self.hand_over(&world, past, kept) {
                Ok(()) if world.rank() >= kept => return self.wait_for_a_place(world, past, membership),
                Ok(()) => {}
                Err(error) if is_survived(&error, &world, self.options) => {}
                Err(error) => {
                    tell_others(&world, &error, self.options);
                    return Err(error);
                }
            }
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.config.training.wait_seconds)
    }

    /// One of the ranks says it.
    fn too_few(&self, world: &World, membership: &Membership) -> TrainError {
        membership.end();
        let error = TrainError::TooFewRanks {
            left: world.size(),
            needed: self.shapes.fewest(),
            layout: self.shapes.asked_layout(),
        };
        if world.rank() == 0 { error } else { TrainError::Elsewhere { rank: 0 } }
    }

    /// Ranks beyond whole replicas give what they hold to the others before they leave.
    fn hand_over(&self, world: &World, past: &mut Past, kept: u32) -> Result<(), TrainError> {
        let layout = Layout { data: world.size(), ..Layout::default() };
        let ranks = RunRanks::among(world, layout, false, None)?;
        // What they hold lies where they compute.
        let device = past.open_device(self.config, Some(world), 1)?;
        past.recovered.hand_over(&device, &ranks, kept as usize, &Steps::of(self.config))
    }

    /// Leaves the others and comes back when they need this process.
    fn wait_for_a_place(
        &self,
        world: World,
        past: &mut Past,
        membership: &Membership,
    ) -> Result<Next, TrainError> {
        let newcomer = world.as_newcomer();
        drop(world);
        self.rejoin(newcomer, past, membership)
    }

    fn rejoin(
        &self,
        (rendezvous, options): (bedplate_comm::Rendezvous, bedplate_comm::WorldOptions),
        past: &mut Past,
        membership: &Membership,
    ) -> Result<Next, TrainError> {
        // What it held is of another time than what the others hold by then.
        *past = Past::default();
        let never = AtomicBool::new(false);
        let stop = self.options.stop.unwrap_or(&never);
        let joined = membership.join(&rendezvous, &options, stop, SystemTime::UNIX_EPOCH)?;
        Ok(joined.map_or(Next::NotNeeded, Next::World))
    }
}

/// Decides, while the ranks that are left gather, which newcomers are waited for.
struct Waiting<'a> {
    regrouping: &'a Regrouping<'a>,
    membership: &'a Membership,
    point: bedplate_comm::MeetingPoint,
    began: Instant,
    /// Who waited when it was last looked.
    seen: Cell<Option<(Instant, u32)>>,
    has_noted: Cell<bool>,
    missing: Cell<u32>,
    observer: RefCell<&'a mut dyn Observer>,
}

/// How often it is looked who waits.
const LOOK: Duration = Duration::from_millis(50);

impl<'a> Waiting<'a> {
    fn new(
        regrouping: &'a Regrouping<'a>,
        world: &World,
        membership: &'a Membership,
        observer: &'a mut dyn Observer,
    ) -> Self {
        Self {
            regrouping,
            membership,
            point: world.own_meeting_point(),
            began: Instant::now(),
            seen: Cell::new(None),
            has_noted: Cell::new(false),
            missing: Cell::new(0),
            observer: RefCell::new(observer),
        }
    }

    /// Asked only on the rank that gathers the others.
    fn numbering(&self, Gap { left, gone }: Gap) -> Numbering {
        if !self.has_noted.replace(true) {
            // Without the note nobody comes, and the others go on alone.
            let _ = self.membership.meet_at(self.point);
        }
        let shapes = self.regrouping.shapes;
        let is_early = self.began.elapsed() < PROMPT;
        let waiting = if is_early { self.waiting() } else { 0 };
        if gone > 0 && waiting >= gone && shapes.on(left + gone).is_some() {
            return Numbering::Kept;
        }
        if let Some(layout) = shapes.largest(left + waiting) {
            return Numbering::Compact { newcomers: (layout.world() as u32).saturating_sub(left) };
        }
        if self.began.elapsed() >= self.regrouping.patience() || self.is_hopeless() {
            return Numbering::Compact { newcomers: 0 };
        }
        let newcomers = shapes.fewest().saturating_sub(left);
        self.tell(left, newcomers);
        Numbering::Compact { newcomers }
    }

    fn waiting(&self) -> u32 {
        match self.seen.get().filter(|(when, _)| when.elapsed() < LOOK) {
            Some((_, waiting)) => waiting,
            None => {
                let waiting = self.membership.waiting();
                self.seen.set(Some((Instant::now(), waiting)));
                waiting
            }
        }
    }

    /// Whether nobody can come any more, or the run is to stop.
    fn is_hopeless(&self) -> bool {
        let is_stopped = self.regrouping.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        is_stopped || self.membership.is_closed() && self.waiting() == 0
    }

    /// Says once for whom the run waits.
    fn tell(&self, left: u32, missing: u32) {
        if self.missing.replace(missing) != missing {
            let _ = self.membership.await_at(self.point, missing);
            let seconds = self.regrouping.patience().as_secs();
            let layout = self.regrouping.shapes.asked_layout();
            self.observer.borrow_mut().waits(&format!(
                "{left} ranks are left of {layout}, which is not a whole replica; the run waits up to {seconds} s for {missing} more"
            ));
        }
    }
}
