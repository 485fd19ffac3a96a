//! A solver for the maximum flow of least cost.
//!
//! The method is primal-dual: node potentials keep the reduced cost of every residual arc at or above 0. Each
//! phase computes the distances from the source (Dijkstra), moves the potentials, and saturates all shortest
//! paths at once (Dinic's blocking flows). The number of phases is the number of distinct path costs, which
//! are few with the small integer costs used here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// More than any flow.
pub(crate) const UNBOUNDED: i64 = 1 << 60;

/// One direction of an arc. The index of its reverse differs in the lowest bit.
#[derive(Clone, Copy, Debug)]
struct Arc {
    to: usize,
    /// The flow that can still be sent.
    room: i64,
    cost: i64,
}

/// A network under construction, and later its flow.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    arcs: Vec<Arc>,
    out: Vec<Vec<usize>>,
}

impl Network {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { arcs: Vec::new(), out: vec![Vec::new(); nodes] }
    }

    /// Adds an arc and returns its number, for [`Network::flow`]. `cost` and `room` are at least 0.
    pub(crate) fn arc(&mut self, from: usize, to: usize, room: i64, cost: i64) -> usize {
        debug_assert!(cost >= 0 && room >= 0);
        let id = self.arcs.len();
        self.arcs.push(Arc { to, room, cost });
        self.arcs.push(Arc { to: from, room: 0, cost: -cost });
        self.out[from].push(id);
        self.out[to].push(id + 1);
        id
    }

    /// Returns the flow over an arc.
    pub(crate) fn flow(&self, arc: usize) -> i64 {
        self.arcs[arc ^ 1].room
    }

    /// Sends the maximum flow at least cost. After `phases` phases, the rest is sent without regard to cost.
    /// So the flow is always maximum and the time always bounded. Returns whether the cost is the least.
    pub(crate) fn solve(&mut self, source: usize, sink: usize, phases: usize) -> bool {
        let mut potential = vec![0i64; self.out.len()];
        for _ in 0..phases {
            if !self.shorten(source, sink, &mut potential) {
                return true;
            }
            while self.block(source, sink, |a, from| a.cost + potential[from] - potential[a.to] == 0) {}
        }
        while self.block(source, sink, |_, _| true) {}
        false
    }

    /// Moves the potentials so that the shortest paths to the sink have reduced cost 0. Returns false if
    /// there is no path.
    fn shorten(&self, source: usize, sink: usize, potential: &mut [i64]) -> bool {
        let mut distance = vec![i64::MAX; self.out.len()];
        let mut heap = BinaryHeap::from([Reverse((0i64, source))]);
        distance[source] = 0;
        while let Some(Reverse((d, node))) = heap.pop() {
            if d > distance[node] {
                continue;
            }
            if node == sink {
                break;
            }
            for &id in &self.out[node] {
                let a = &self.arcs[id];
                if a.room > 0 {
                    let next = d + a.cost + potential[node] - potential[a.to];
                    if next < distance[a.to] {
                        distance[a.to] = next;
                        heap.push(Reverse((next, a.to)));
                    }
                }
            }
        }
        let limit = distance[sink];
        if limit == i64::MAX {
            return false;
        }
        for (p, d) in potential.iter_mut().zip(distance) {
            *p += d.min(limit);
        }
        true
    }

    /// Sends one blocking flow over the arcs for which `usable` is true; its arguments are the arc and the
    /// node where the arc begins. Returns whether the sink could be reached.
    fn block(&mut self, source: usize, sink: usize, usable: impl Fn(&Arc, usize) -> bool) -> bool {
        let Some(level) = self.levels(source, sink, &usable) else { return false };
        let mut next_arc = vec![0usize; self.out.len()];
        let mut path: Vec<usize> = Vec::new();
        let mut node = source;
        loop {
            if node == sink {
                let room = path.iter().map(|&id| self.arcs[id].room).min().unwrap_or(0);
                for &id in &path {
                    self.arcs[id].room -= room;
                    self.arcs[id ^ 1].room += room;
                }
                // Continues from the node before the first arc that is now full.
                let full = path.iter().position(|&id| self.arcs[id].room == 0).unwrap_or(0);
                node = self.arcs[path[full] ^ 1].to;
                path.truncate(full);
                continue;
            }
            let way = self.out[node].get(next_arc[node]).copied();
            match way {
                Some(id) => {
                    let a = &self.arcs[id];
                    if a.room > 0 && level[a.to] == level[node] + 1 && usable(a, node) {
                        path.push(id);
                        node = a.to;
                    } else {
                        next_arc[node] += 1;
                    }
                }
                None => {
                    let Some(id) = path.pop() else { return true };
                    node = self.arcs[id ^ 1].to;
                    next_arc[node] += 1;
                }
            }
        }
    }

    /// Returns the number of arcs from the source to each node; `None` if the sink cannot be reached.
    fn levels(&self, source: usize, sink: usize, usable: impl Fn(&Arc, usize) -> bool) -> Option<Vec<u32>> {
        let mut level = vec![u32::MAX; self.out.len()];
        level[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &id in &self.out[node] {
                let a = &self.arcs[id];
                if a.room > 0 && level[a.to] == u32::MAX && usable(a, node) {
                    level[a.to] = level[node] + 1;
                    if a.to == sink {
                        return Some(level);
                    }
                    queue.push_back(a.to);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn textbook() {
        // There are two paths from 0 to 3. The cheap path is narrow, and a crossing arc is worth its cost.
        let mut n = Network::new(4);
        let a = n.arc(0, 1, 4, 1);
        let b = n.arc(0, 2, 2, 5);
        let c = n.arc(1, 2, 2, 1);
        let d = n.arc(1, 3, 3, 3);
        let e = n.arc(2, 3, 5, 1);
        assert!(n.solve(0, 3, 100));
        let flows = [a, b, c, d, e].map(|x| n.flow(x));
        assert_eq!(flows, [4, 2, 2, 2, 4]);
    }

    #[test]
    fn without_phases_the_flow_is_still_maximal() {
        let mut n = Network::new(4);
        n.arc(0, 1, 7, 1);
        n.arc(1, 2, 5, 3);
        n.arc(1, 3, 1, 9);
        let out = n.arc(2, 3, 6, 1);
        assert!(!n.solve(0, 3, 0));
        assert_eq!(n.flow(out), 5);
    }

    #[test]
    fn cycles_without_cost_cause_no_endless_loop() {
        let mut n = Network::new(5);
        n.arc(0, 1, 9, 0);
        n.arc(1, 2, UNBOUNDED, 0);
        n.arc(2, 1, UNBOUNDED, 0);
        n.arc(2, 3, UNBOUNDED, 0);
        n.arc(3, 2, UNBOUNDED, 0);
        let last = n.arc(3, 4, 6, 2);
        assert!(n.solve(0, 4, 100));
        assert_eq!(n.flow(last), 6);
    }
}
