//! The scheduler on a real API server, with kube-scheduler beside it and nodes that kwok plays.

mod world;

use world::{Gang, World, node_of};

#[test]
fn gangs_are_bound_whole_on_a_real_server() {
    let Some(world) = World::start() else { return };
    binds_a_gang_whole(&world);
}

fn binds_a_gang_whole(world: &World) {
    let scheduler = world.scheduler();
    world.gang(&Gang::new("whole", 4, 8));
    world.until("all four pods stand", || world.bound("whole") == 4);
    let mut nodes: Vec<String> = world.of_gang("whole").iter().filter_map(node_of).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 4, "eight GPUs each are a node each: {nodes:?}");
    world.clear();
    scheduler.stop();
}
