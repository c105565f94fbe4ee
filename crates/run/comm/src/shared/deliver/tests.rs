//! Pieces claimed in any order do what delivering to each member does. Runs under Miri too.

use super::*;
use crate::{ElementFormat, Reduction};

const OPERATIONS: [Operation; 8] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::Gather,
    Operation::Scatter,
];

fn memory(call: &Call, members: usize, parts: fn(&Call, usize, usize) -> usize) -> Vec<Vec<f32>> {
    let len = |member| parts(call, member, members) * call.len as usize;
    let number = |member: usize| move |index: usize| (member * 1000 + index) as f32;
    (0..members).map(|member| (0..len(member)).map(number(member)).collect()).collect()
}

#[test]
fn pieces_in_any_order_deliver_what_each_member_would_fetch() {
    for operation in OPERATIONS {
        for (members, len) in [(1, 5), (2, 70), (3, 200), (4, if cfg!(miri) { 70 } else { 70_000 })] {
            let call = Call { root: members as u32 - 1, ..Call::new(operation, ElementFormat::F32, len) }
                .by(Reduction::Sum);
            let sources = memory(&call, members, source_parts);
            let source = |elements: &Vec<f32>| MemberSource {
                address: elements.as_ptr().cast(),
                stride: len,
                origin: 0,
            };
            let readable: Vec<MemberSource> = sources.iter().map(source).collect();
            let mut fetched = memory(&call, members, target_parts);
            let mut claimed = fetched.clone();
            let pieces = Pieces::of(&call, members);
            let targets: Vec<*mut u8> =
                claimed.iter_mut().map(|elements| elements.as_mut_ptr().cast()).collect();
            #[expect(unsafe_code, reason = "the functions under test work on addresses")]
            // SAFETY: sources and targets have the parts of the call; each piece is done once, by this thread.
            unsafe {
                (0..pieces.count()).rev().for_each(|piece| pieces.perform(piece, &readable, &targets));
                for (member, elements) in fetched.iter_mut().enumerate() {
                    let (middle, target) = (len / 3, elements.as_mut_ptr().cast());
                    deliver(&call, &readable, member, target, 0..middle);
                    deliver(&call, &readable, member, target, middle..len);
                }
            }
            // The root of a broadcast has its elements already.
            if operation == Operation::Broadcast {
                fetched[members - 1].clone_from(&claimed[members - 1]);
            }
            assert_eq!(claimed, fetched, "{operation} of {len} by {members}");
        }
    }
}
