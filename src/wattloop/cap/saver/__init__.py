"""The saver of `wattloop run --save`: least energy within a slowdown limit, with its proof."""
