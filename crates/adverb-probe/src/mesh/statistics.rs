//! Exact tests of loss counts.

/// Returns the natural logarithm of n!.
pub(super) fn ln_factorial(n: u64) -> f64 {
    if n < 10 {
        return (2..=n).map(|factor| (factor as f64).ln()).sum();
    }
    // Stirling's series. The next term is below 1e-10 from 10 on.
    let x = n as f64 + 1.0;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + 1.0 / (12.0 * x)
        - 1.0 / (360.0 * x.powi(3))
        + 1.0 / (1260.0 * x.powi(5))
}

/// Returns the natural logarithm of the number of ways to choose `k` of `n`.
fn ln_choose(n: u64, k: u64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Returns the probability of at least `k` losses among `n` probes that are lost independently with probability `p`.
pub(super) fn binomial_tail(k: u64, n: u64, p: f64) -> f64 {
    if k == 0 {
        return 1.0;
    }
    let term = |i: u64| (ln_choose(n, i) + i as f64 * p.ln() + (n - i) as f64 * (-p).ln_1p()).exp();
    sum_of_tail(k, n, term)
}

/// Returns the probability that at least `k` of `losses` are among the `n` probes of a set, if the losses are spread
/// over `probes` without regard to the set. This is Fisher's exact test, one-sided.
pub(super) fn hypergeometric_tail(k: u64, n: u64, losses: u64, probes: u64) -> f64 {
    let last = losses.min(n);
    if k == 0 || k + probes <= losses + n {
        return 1.0;
    }
    let term = |i: u64| {
        if losses - i > probes - n {
            return 0.0;
        }
        (ln_choose(n, i) + ln_choose(probes - n, losses - i) - ln_choose(probes, losses)).exp()
    };
    sum_of_tail(k, last, term)
}

/// Returns the sum of the terms from `k` to `last`, at most 1.
fn sum_of_tail(k: u64, last: u64, term: impl Fn(u64) -> f64) -> f64 {
    let mut sum = 0.0;
    let mut largest: f64 = 0.0;
    for i in k..=last {
        let value = term(i);
        sum += value;
        largest = largest.max(value);
        // The terms rise to the mode and fall after it.
        if value < largest * 1e-12 {
            break;
        }
    }
    sum.min(1.0)
}

/// Returns the maximum log-likelihood of `k` losses among `n` probes.
pub(super) fn log_likelihood(k: u64, n: u64) -> f64 {
    let entropy = |part: u64| if part == 0 { 0.0 } else { part as f64 * (part as f64 / n as f64).ln() };
    entropy(k) + entropy(n - k)
}

/// Returns the upper confidence bound of the loss probability after `k` losses among `n` probes, at this confidence.
pub(super) fn loss_bound(k: u64, n: u64, confidence: f64) -> f64 {
    if n == 0 || k >= n {
        return 1.0;
    }
    // The bound is the probability at which at most `k` losses are as improbable as `1 - confidence` (Clopper–Pearson).
    let at_most_k = |p: f64| -> f64 {
        let term = |i: u64| (ln_choose(n, i) + i as f64 * p.ln() + (n - i) as f64 * (-p).ln_1p()).exp();
        (0..=k).map(term).sum()
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..30 {
        let middle = 0.5 * (low + high);
        if at_most_k(middle) > 1.0 - confidence {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(value: f64, expected: f64) {
        assert!((value - expected).abs() <= expected.abs() * 1e-6 + 1e-12, "{value} is not {expected}");
    }

    #[test]
    fn factorials_are_exact_enough_on_both_sides_of_the_series() {
        let sum = |n: u64| (2..=n).map(|factor| (factor as f64).ln()).sum::<f64>();
        for n in [0, 1, 2, 9, 10, 11, 100, 1000] {
            assert_close(ln_factorial(n), sum(n));
        }
    }

    #[test]
    fn binomial_tails_are_those_of_tables() {
        assert_close(binomial_tail(0, 10, 0.5), 1.0);
        assert_close(binomial_tail(10, 10, 0.5), 1.0 / 1024.0);
        assert_close(binomial_tail(8, 10, 0.5), 56.0 / 1024.0);
        assert_close(binomial_tail(1, 100, 0.001), 1.0 - 0.999_f64.powi(100));
    }

    #[test]
    fn hypergeometric_tails_are_those_of_counting() {
        // All 3 losses among 4 of 10 probes: C(4,3) / C(10,3).
        assert_close(hypergeometric_tail(3, 4, 3, 10), 4.0 / 120.0);
        // At least 2 of 3: (C(4,2)·6 + 4) / 120.
        assert_close(hypergeometric_tail(2, 4, 3, 10), 40.0 / 120.0);
        // The set contains all probes, or there are more losses than probes outside the set.
        assert_close(hypergeometric_tail(3, 10, 3, 10), 1.0);
        assert_close(hypergeometric_tail(1, 9, 2, 10), 1.0);
    }

    #[test]
    fn bound_without_losses_is_the_rule_of_three() {
        assert!((loss_bound(0, 1000, 0.95) - 0.003).abs() < 1e-5);
        assert!(loss_bound(5, 1000, 0.95) > 0.005);
        assert_close(loss_bound(0, 0, 0.95), 1.0);
    }
}
