//! Computes the address of each fragment.
//!
//! The hot fragments of all functions come first, then the warm ones, both in the functions' order. So warm
//! code shares at most one cache line with hot code.

use crate::items::Zone;
use addr::{Addr, Avma, AvmaRange};

/// The zone of a fragment to be placed, and its size. Bytes.
pub(crate) type Piece = (Zone, u32);

/// Returns the ranges of all fragments of each function, in the function's own order, from `text_at` on, and
/// the size of the whole text. Bytes.
pub(crate) fn place(text_at: Avma, functions: &[Vec<Piece>]) -> (Vec<Vec<AvmaRange>>, u64) {
    let mut places: Vec<Vec<AvmaRange>> = functions.iter().map(|f| Vec::with_capacity(f.len())).collect();
    let mut text_len = 0u64;
    for zone in [Zone::Hot, Zone::Warm] {
        for (fragments, places) in functions.iter().zip(&mut places) {
            for (_, len) in fragments.iter().filter(|(z, _)| *z == zone) {
                places.push(AvmaRange::with_len(text_at.add(text_len), u64::from(*len)));
                text_len += u64::from(*len);
            }
        }
    }
    (places, text_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_before_warm() {
        let functions = [
            vec![(Zone::Hot, 5), (Zone::Warm, 3)],
            vec![(Zone::Warm, 7)],
            vec![(Zone::Hot, 4), (Zone::Warm, 1)],
        ];
        let range = |at: u64, len| AvmaRange::with_len(Avma(0x1000 + at), len);
        let (places, len) = place(Avma(0x1000), &functions);
        let wanted = [vec![range(0, 5), range(9, 3)], vec![range(12, 7)], vec![range(5, 4), range(19, 1)]];
        assert_eq!((places, len), (wanted.to_vec(), 20));
    }
}
