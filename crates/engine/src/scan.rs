//! Finding byte sequences in the code of whole modules.

/// How many places are looked at in one go, by instructions that do many at once.
const STRIDE: usize = 64;

/// Where these two bytes stand, rising. For pairs that are rare.
pub(crate) fn pairs(bytes: &[u8], pair: [u8; 2]) -> impl Iterator<Item = usize> + '_ {
    let starts = 0..bytes.len().saturating_sub(1);
    starts.step_by(STRIDE).flat_map(move |from| {
        let upto = (from + STRIDE + 1).min(bytes.len());
        let window = bytes.get(from..upto).unwrap_or_default();
        let next = window.get(1..).unwrap_or_default();
        let any =
            window.iter().zip(next).fold(false, |any, (&a, &b)| any | ((a == pair[0]) & (b == pair[1])));
        let hits =
            window.windows(2).enumerate().filter(move |(_, w)| **w == pair).map(move |(i, _)| from + i);
        any.then_some(hits).into_iter().flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn each_is_found_once() {
        for len in [0, 1, 2, 3, 63, 64, 65, 66, 127, 128, 129, 130, 1000] {
            let bytes: Vec<u8> = (0..len).map(|i: usize| u8::try_from(i * i % 7 % 3).unwrap()).collect();
            for pair in [[0, 0], [0, 1], [1, 2], [2, 2], [9, 9]] {
                let all: Vec<usize> = (1..len).filter(|&i| bytes[i - 1..=i] == pair).map(|i| i - 1).collect();
                assert_eq!(pairs(&bytes, pair).collect::<Vec<_>>(), all, "{len} {pair:?}");
            }
        }
    }
}
