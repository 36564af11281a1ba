"""What a job's user says of it: `--comment "wattloop:model=resnet-50,batch=128,low-power"`.

comment  the grammar
stated   what a comment states, with the bounds of every field

The agent on a node and the scheduler read it by the same words.
"""
