//! The tree against a matcher that keeps every prefix in a list.

use proptest::prelude::*;

use super::*;

/// Keys of a path: steps that are alike are a run, which follows from all before it.
fn keys(path: &[u8]) -> Vec<BlockKey> {
    let mut list: Vec<BlockKey> = Vec::new();
    for (at, step) in path.iter().enumerate() {
        let before = list.last().copied();
        list.push(match before {
            Some(BlockKey(last)) if path[at - 1] == *step => BlockKey(last.wrapping_add(1)),
            _ => before.unwrap_or(BlockKey(0)).then(u64::from(*step)),
        });
    }
    list
}

fn blocks_of(tree: &PrefixTree<Vec<BlockId>>, held: HeldPrefix) -> Vec<BlockId> {
    let mut table = Vec::new();
    tree.list(held, &mut table);
    table
}

fn runs(list: &[BlockKey]) -> BlockKeys {
    list.iter().copied().collect()
}

/// Blocks known, block by block: the path of keys to it, who holds it, when it was last released and how deep it
/// is. Nothing is compressed and everything is searched.
#[derive(Default)]
struct Naive {
    known: Vec<Known>,
    clock: u64,
}

struct Known {
    path: Vec<BlockKey>,
    block: BlockId,
    holders: u32,
    released: u64,
}

impl Naive {
    fn find(&self, path: &[BlockKey]) -> Option<&Known> {
        self.known.iter().find(|known| known.path == path)
    }

    fn longest(&self, keys: &[BlockKey]) -> usize {
        (1..=keys.len()).take_while(|len| self.find(&keys[..*len]).is_some()).count()
    }

    fn change(&mut self, keys: &[BlockKey], by: i32) {
        self.clock += 1;
        let clock = self.clock;
        for known in self.known.iter_mut().filter(|known| keys.starts_with(&known.path)) {
            known.holders = known.holders.checked_add_signed(by).unwrap();
            known.released = clock;
        }
    }

    /// The idle leaf released longest ago; deeper ones first.
    fn victim(&self) -> Option<usize> {
        let idle = self.known.iter().enumerate().filter(|(_, known)| known.holders == 0);
        idle.min_by_key(|(_, known)| (known.released, std::cmp::Reverse(known.path.len()))).map(|(at, _)| at)
    }

    fn idle(&self) -> u32 {
        self.known.iter().filter(|known| known.holders == 0).count() as u32
    }
}

#[derive(Debug, Clone)]
enum Operation {
    /// Hold a prompt's known prefix and put the rest of it below.
    Insert(Vec<u8>),
    Hold(Vec<u8>),
    /// Release the hold at this index, modulo their number.
    Release(usize),
    Evict(u32),
    Look(Vec<u8>),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let path = || prop::collection::vec(prop_oneof![3 => Just(0u8), 2 => 1u8..3], 0..10);
    let operation = prop_oneof![
        path().prop_map(Operation::Insert),
        path().prop_map(Operation::Hold),
        any::<usize>().prop_map(Operation::Release),
        (0u32..6).prop_map(Operation::Evict),
        path().prop_map(Operation::Look),
    ];
    prop::collection::vec(operation, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_tree_answers_like_a_naive_matcher(operations in operations()) {
        let (mut tree, mut naive) = (PrefixTree::new(), Naive::default());
        let mut held: Vec<(HeldPrefix, Vec<BlockKey>)> = Vec::new();
        let mut next_block = 0;
        for operation in operations {
            match operation {
                Operation::Insert(path) => {
                    let keys = keys(&path);
                    let before = tree.hold(&runs(&keys));
                    prop_assert_eq!(before.blocks as usize, naive.longest(&keys));
                    let rest = &keys[before.blocks as usize..];
                    let blocks: Vec<BlockId> = rest.iter().map(|_| { next_block += 1; BlockId(next_block) }).collect();
                    let (mut table, mut spare) = (blocks_of(&tree, before), Vec::new());
                    table.extend_from_slice(&blocks);
                    let after = tree.extend(before, &runs(&keys), &mut table, keys.len() as u32, &mut spare);
                    prop_assert_eq!(table, blocks_of(&tree, after));
                    prop_assert!(spare.is_empty());
                    for (at, block) in blocks.iter().enumerate() {
                        let path = keys[..before.blocks as usize + at + 1].to_vec();
                        naive.known.push(Known { path, block: *block, holders: 0, released: 0 });
                    }
                    naive.change(&keys, 1);
                    held.push((after, keys));
                }
                Operation::Hold(path) => {
                    let keys = keys(&path);
                    let found = tree.hold(&runs(&keys));
                    let keys = keys[..found.blocks as usize].to_vec();
                    prop_assert_eq!(keys.len(), naive.longest(&keys));
                    naive.change(&keys, 1);
                    held.push((found, keys));
                }
                Operation::Release(at) if !held.is_empty() => {
                    let (found, keys) = held.swap_remove(at % held.len());
                    tree.release(found);
                    naive.change(&keys, -1);
                }
                Operation::Release(_) => {}
                Operation::Evict(wanted) => {
                    let mut freed = Vec::new();
                    tree.evict(wanted, &mut freed, None);
                    let mut expected = Vec::new();
                    for _ in 0..wanted {
                        let Some(victim) = naive.victim() else { break };
                        let gone = naive.known.remove(victim);
                        prop_assert!(!naive.known.iter().any(|known| known.path.starts_with(&gone.path)));
                        expected.push(gone.block);
                    }
                    // In which order a step's blocks become free decides nothing.
                    freed.sort();
                    expected.sort();
                    prop_assert_eq!(freed, expected);
                }
                Operation::Look(path) => {
                    let keys = keys(&path);
                    let cached = tree.cached(&runs(&keys), keys.len() as u32);
                    prop_assert_eq!(tree.known(&runs(&keys), keys.len() as u32), cached.blocks);
                    let longest = naive.longest(&keys);
                    let idle = (1..=longest).filter(|len| naive.find(&keys[..*len]).unwrap().holders == 0);
                    prop_assert_eq!((cached.blocks, cached.idle), (longest as u32, idle.count() as u32));
                }
            }
            prop_assert_eq!(tree.idle_blocks(), naive.idle());
            prop_assert_eq!(tree.held_blocks() + tree.idle_blocks(), naive.known.len() as u32);
            for (found, keys) in &held {
                let expected: Vec<BlockId> =
                    (1..=keys.len()).map(|len| naive.find(&keys[..len]).unwrap().block).collect();
                prop_assert_eq!(blocks_of(&tree, *found), expected);
            }
        }
    }
}

#[test]
fn a_prompt_computed_twice_is_kept_once() {
    let mut tree = PrefixTree::new();
    let keys = runs(&keys(&[1, 1, 2]));
    let blocks: Vec<BlockId> = (0..6).map(BlockId).collect();
    let mut spare = Vec::new();
    let first = tree.extend(HeldPrefix::NOTHING, &keys, &mut blocks[..3].to_vec(), 3, &mut spare);
    let mut table = blocks[3..].to_vec();
    let second = tree.extend(HeldPrefix::NOTHING, &keys, &mut table, 3, &mut spare);
    assert_eq!(spare, &blocks[3..]);
    assert_eq!((blocks_of(&tree, second), table), (blocks[..3].to_vec(), blocks[..3].to_vec()));
    tree.release(first);
    assert_eq!((tree.idle_blocks(), tree.held_blocks()), (0, 3));
    tree.release(second);
    assert_eq!((tree.idle_blocks(), tree.held_blocks()), (3, 0));
}

proptest! {
    /// Keys are chained hashes; where somebody makes some up, nothing may break.
    #[test]
    fn keys_that_do_not_follow_from_those_before_them_do_no_harm(
        prompts in prop::collection::vec((prop::collection::vec(0u64..6, 0..10), 0u32..8), 0..60),
    ) {
        let mut tree = PrefixTree::new();
        let (mut held, mut in_tree, mut next) = (Vec::new(), std::collections::BTreeSet::new(), 0);
        for (prompt, evicted) in prompts {
            let keys: BlockKeys = prompt.into_iter().map(BlockKey).collect();
            let before = tree.hold(&keys);
            let blocks: Vec<BlockId> =
                (before.blocks..keys.len()).map(|_| { next += 1; BlockId(next) }).collect();
            let (mut table, mut gone) = (blocks_of(&tree, before), Vec::new());
            table.extend_from_slice(&blocks);
            held.push(tree.extend(before, &keys, &mut table, keys.len(), &mut gone));
            in_tree.extend(blocks);
            if evicted % 2 == 0 {
                tree.release(held.swap_remove(evicted as usize % held.len()));
            }
            tree.evict(evicted, &mut gone, None);
            prop_assert!(gone.iter().all(|block| in_tree.remove(block)));
            prop_assert_eq!(tree.idle_blocks() + tree.held_blocks(), in_tree.len() as u32);
            for each in &held {
                let blocks = blocks_of(&tree, *each);
                prop_assert_eq!(blocks.len() as u32, each.blocks);
                prop_assert!(blocks.iter().all(|block| in_tree.contains(block)));
            }
        }
        held.drain(..).for_each(|each| tree.release(each));
        let mut gone = Vec::new();
        tree.evict(u32::MAX, &mut gone, None);
        prop_assert!(gone.iter().all(|block| in_tree.remove(block)) && in_tree.is_empty());
    }
}

#[test]
fn a_key_at_another_position_is_another_prefix() {
    let list = |keys: &[u64]| -> BlockKeys { keys.iter().copied().map(BlockKey).collect() };
    let mut tree = PrefixTree::new();
    let held = tree.extend(HeldPrefix::NOTHING, &list(&[103]), &mut vec![BlockId(1)], 1, &mut Vec::new());
    assert_eq!(tree.known(&list(&[200, 201, 105]), 3), 0);
    assert_eq!(tree.known(&list(&[103, 104, 9]), 3), 1);
    tree.release(held);
}
