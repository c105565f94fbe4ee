//! Any layout reads what any other wrote, to the bit.

use bedplate_checkpoint::Region;
use bedplate_random::Random;

use crate::place::{Place, check, newest, save};

fn below(random: &mut Random, count: usize) -> usize {
    ((random.uniform() * count as f64) as usize).min(count.saturating_sub(1))
}

/// Cuts a rectangle at random places until its pieces are small or luck ends it.
fn cut(region: Region, random: &mut Random, depth: usize, pieces: &mut Vec<Region>) {
    let Region { rows, columns, .. } = &region;
    if depth == 0 || region.len() < 2 || random.uniform() < 0.15 {
        return pieces.push(region);
    }
    let (mut one, mut other) = (region.clone(), region.clone());
    if columns.len() < 2 || (rows.len() > 1 && random.uniform() < 0.5) {
        let at = rows.start + 1 + below(random, rows.len() - 1);
        (one.rows.end, other.rows.start) = (at, at);
    } else {
        let at = columns.start + 1 + below(random, columns.len() - 1);
        (one.columns.end, other.columns.start) = (at, at);
    }
    cut(one, random, depth - 1, pieces);
    cut(other, random, depth - 1, pieces);
}

/// Pieces of all tensors, dealt out to ranks at random; some ranks may have none.
fn layout(tensors: &[(String, [usize; 2])], random: &mut Random) -> Vec<Vec<Region>> {
    let mut ranks = vec![Vec::new(); 1 + below(random, 9)];
    for (name, shape) in tensors {
        let depth = below(random, 6);
        let mut pieces = Vec::new();
        cut(Region::whole(name.clone(), *shape), random, depth, &mut pieces);
        for piece in pieces {
            let rank = below(random, ranks.len());
            ranks[rank].push(piece);
        }
    }
    ranks
}

#[test]
fn forty_random_pairs_of_layouts_give_the_same_bits() {
    let place = Place::new("layouts");
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let tensors: Vec<(String, [usize; 2])> = (0..1 + below(&mut random, 7))
            .map(|index| {
                let shape = [1 + below(&mut random, 300), 1 + below(&mut random, 200)];
                (format!("weights/tensor.{index}"), shape)
            })
            .collect();
        let (writing, reading) = (layout(&tensors, &mut random), layout(&tensors, &mut random));
        let checkpoints = place.checkpoints(1);
        save(&checkpoints, &writing, seed + 1).unwrap();
        let checkpoint = newest(&checkpoints);
        assert_eq!(checkpoint.facts().step, seed + 1);
        check(&checkpoint, &reading);
        check(&checkpoint, &writing);
        assert_eq!(checkpoint.facts().layout, format!("{} ranks", writing.len()));
    }
}

#[test]
fn what_a_checkpoint_does_not_have_is_refused_before_anything_is_read() {
    let place = Place::new("foreign");
    let checkpoints = place.checkpoints(1);
    save(&checkpoints, &[vec![Region::whole("weights/a", [4, 4])]], 1).unwrap();
    let checkpoint = newest(&checkpoints);
    for other in [Region::whole("weights/b", [4, 4]), Region::whole("weights/a", [4, 5])] {
        let mut got = crate::place::Got(vec![vec![0.0; other.len()]]);
        let error = checkpoint.load(&[other], &mut got).unwrap_err();
        assert!(error.to_string().contains("is of another run: it has no `weights/"), "{error}");
    }
}

#[test]
fn parts_that_do_not_cover_the_state_are_not_published() {
    let place = Place::new("gaps");
    let checkpoints = place.checkpoints(1);
    let whole = Region::whole("weights/a", [4, 4]);
    let half = Region { rows: 0..2, ..whole.clone() };
    for (layout, said) in [
        (vec![vec![half.clone()]], "8 of the 16 numbers of `weights/a` are there"),
        (vec![vec![whole], vec![half]], "row 0, column 0 of `weights/a` is there twice"),
    ] {
        let error = save(&checkpoints, &layout, 1).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(checkpoints.newest_step().unwrap().is_none());
        assert!(
            crate::place::names(checkpoints.store().directory().unwrap()).is_empty(),
            "its files are gone"
        );
    }
}
